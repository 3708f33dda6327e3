"""The one way to the store: opened by one thread, used by that thread, and honest when it is down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, TypeVar

from invigilator.guard.api.problem import ProblemError

if TYPE_CHECKING:
    from invigilator.incidents.store import Store

State = Literal["opening", "ready", "unavailable", "closed"]
RETRY_FIRST_S = 0.5
RETRY_MOST_S = 10.0
T = TypeVar("T")
_log = logging.getLogger("invigilator.serve")


class StoreGate:
    """Opens the store, tries again while it cannot, and runs work on it, one piece at a time.

    One thread, because an embedded chDB has one engine a process and a connection is not shared between
    threads. `detail` says why the store is not there.
    """

    def __init__(self, target: str, opener: Callable[[str], Store]) -> None:
        self._target = target
        self._opener = opener
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._store: Store | None = None
        self._again = asyncio.Event()
        self.state: State = "opening"
        self.detail = ""

    async def keep_open(self) -> None:
        """Open the store and open it again whenever it went down; runs until cancelled."""
        pause_s = RETRY_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._store = await loop.run_in_executor(self._thread, self._open)
                self.state, self.detail, pause_s = "ready", "", RETRY_FIRST_S
                _log.info("store is open")
                self._again.clear()
                await self._again.wait()
            except Exception as error:
                self._down(error)
                await asyncio.sleep(pause_s)
                pause_s = min(RETRY_MOST_S, pause_s * 2)

    def _open(self) -> Store:
        store = self._opener(self._target)
        store.migrate()
        return store

    def _down(self, error: Exception) -> None:
        detail = " ".join(str(error).split())[:500] or type(error).__name__
        if detail != self.detail:
            _log.warning("store is unavailable: %s", detail)
        self.state, self.detail, self._store = "unavailable", detail, None

    async def run(self, work: Callable[[Store], T]) -> T:
        """The result of `work` on the store, in the store's thread; 503 while there is none."""
        if self._store is None:
            raise self.unavailable()
        store = self._store
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, store)

    def unavailable(self) -> ProblemError:
        """The 503 that says why, and that what was sent is to be sent again."""
        why = self.detail or "the store is being opened"
        fix = "send it again: nothing that was not acknowledged is taken as stored"
        return ProblemError(503, "store-unavailable", why, fix=fix, retry_after_s=1.0)

    def lost(self, error: Exception) -> ProblemError:
        """Note that the store went away under a request; it is opened again in the background."""
        self._down(error)
        self._again.set()
        return self.unavailable()

    async def close(self) -> None:
        """Let running work end, then close the store; nothing may be asked of it any more."""
        store, self._store, self.state = self._store, None, "closed"
        if store is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, store.close)
        self._thread.shutdown(wait=True)
