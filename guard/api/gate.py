"""The one way to the store: opened in the background, used in threads, and honest when it is down."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Literal, TypeVar

from invigilator.guard.api.problem import ProblemError
from invigilator.incidents.store import Store, StoreError, StoreUnavailableError

State = Literal["opening", "ready", "unavailable", "closed"]
Lane = Literal["main", "sql"]
"""People's own queries wait for each other in a lane of their own: a slow one holds up no segment."""

RETRY_FIRST_S = 0.5
RETRY_MOST_S = 10.0
OPENING_PATIENCE_S = 5.0
"""How long a request waits for a store that is being opened for the first time."""
PROJECTS: ContextVar[tuple[str, ...]] = ContextVar("projects", default=())
"""What the caller of the request being answered is bound to; set where callers become known (`traffic`)."""
QUEUE_MOST = {"main": 256, "sql": 8}
T = TypeVar("T")
_log = logging.getLogger("invigilator.serve")


class StoreGate:
    """Opens the store, tries again while it cannot, and runs work on it. `detail`: why it is not there."""

    def __init__(self, target: str, opener: Callable[[str], Store]) -> None:
        self._target = target
        self._opener = opener
        self._threads = {
            "main": ThreadPoolExecutor(1, thread_name_prefix="store"),
            "sql": ThreadPoolExecutor(1, thread_name_prefix="sql"),
        }
        self._waiting = dict.fromkeys(QUEUE_MOST, 0)
        self._store: Store | None = None
        self._again = asyncio.Event()
        self._tried = asyncio.Event()
        self.state: State = "opening"
        self.detail = ""

    async def keep_open(self) -> None:
        """Open the store, and open it again whenever it went down; runs until cancelled."""
        pause_s = RETRY_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._store = await loop.run_in_executor(self._threads["main"], self._open)
                self.state, self.detail, pause_s = "ready", "", RETRY_FIRST_S
                _log.info("the store is open")
                self._tried.set()
                self._again.clear()
                await self._again.wait()
                await self._close_store()
            except Exception as error:
                self._down(error)
            self._tried.set()
            await asyncio.sleep(pause_s)
            pause_s = min(RETRY_MOST_S, pause_s * 2)

    async def run(self, work: Callable[[Store], T], lane: Lane = "main", *, unbound: bool = False) -> T:
        """The result of `work` on the store, in its lane's thread; 503 while there is no store.

        For a request whose caller is bound to projects the store holds nothing else (`Store.scoped`), unless
        the work is the service's own (`unbound`), on what the caller was found to see.
        """
        if self.state == "opening":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._tried.wait(), OPENING_PATIENCE_S)
        if self._store is None or self.state != "ready":
            raise self._unavailable()
        if self._waiting[lane] >= QUEUE_MOST[lane]:
            raise ProblemError(503, "busy", "too much is waiting already", retry_after_s=2.0)
        self._waiting[lane] += 1
        try:
            loop = asyncio.get_running_loop()
            projects = () if unbound else PROJECTS.get()
            seen = self._store.scoped(projects) if projects else self._store
            return await loop.run_in_executor(self._threads[lane], work, seen)
        except StoreUnavailableError as error:
            self._down(error)
            self._again.set()
            raise self._unavailable() from error
        finally:
            self._waiting[lane] -= 1

    def waiting(self) -> dict[Lane, int]:
        """How much waits or is under way, by lane."""
        return {"main": self._waiting["main"], "sql": self._waiting["sql"]}

    async def close(self) -> None:
        """Let running work end, then close the store; nothing may be asked of it any more."""
        self.state = "closed"
        await self._close_store()
        for threads in self._threads.values():
            threads.shutdown(wait=True)

    def _open(self) -> Store:
        store = self._opener(self._target)
        try:
            store.migrate()
        except BaseException:
            store.close()
            raise
        return store

    async def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(StoreError):
                await asyncio.get_running_loop().run_in_executor(self._threads["main"], store.close)

    def _down(self, error: Exception) -> None:
        detail = " ".join(str(error).split())[:500] or type(error).__name__
        if detail != self.detail:
            _log.warning("the store is unavailable: %s", detail)
        self.state, self.detail = "unavailable", detail

    def _unavailable(self) -> ProblemError:
        why = self.detail or (
            "guard serve is ending" if self.state == "closed" else "the store is being opened"
        )
        fix = "nothing that was acknowledged is lost"
        if os.strerror(errno.ENOSPC) in why:
            fix = f"free some on its disk; {fix}"
        return ProblemError(503, "store-unavailable", why, fix=fix, retry_after_s=1.0)
