"""Spool to store: one thread sends segments, oldest first, until the store has acknowledged each.

A segment stays in the spool until it is said to be stored, and the store knows a segment that it has seen:
sent any number of times, it is stored once.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence

import httpx

from invigilator.guard import delivery
from invigilator.guard.delivery import TOKEN_VARIABLE, URL_VARIABLE, ShipError
from invigilator.guard.errors import GuardError
from invigilator.guard.home import Home
from invigilator.guard.node import idle_s
from invigilator.incidents.segment import Segment
from invigilator.incidents.spool import Spool

__all__ = ["TOKEN_VARIABLE", "URL_VARIABLE", "ShipError", "Shipper"]

_log = logging.getLogger("invigilator.ship")

BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
PATIENCE_S = 5.0
"""How long a verdict waits for a store that does not answer: long enough for one that is just starting."""
TOGETHER = 16
TOGETHER_BYTES = 1 << 20
"""How many small segments go in one request, and what they hold together at most."""
STAY_EVERY_S = 20.0
"""How often a service that is not asked for anything is told that rollouts run, at most."""


class Shipper:
    """Sends what `spool` holds. `on_shipped` is called for each acknowledged segment, from the thread.
    While `busy` says that rollouts run, a service that ends when idle is kept from it.

    Where to is `guard.delivery`'s to choose.
    """

    def __init__(
        self,
        home: Home,
        spool: Spool,
        on_shipped: Callable[[Segment], None],
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._delivery = delivery.choose(home)
        self._spool = spool
        self._on_shipped = on_shipped
        self._busy = busy
        self._stay_every_s = min(STAY_EVERY_S, max(0.5, idle_s() / 3))
        self._work = threading.Event()
        self._progress = threading.Condition()
        self._stopping = threading.Event()
        self._trouble: str | None = None
        self._trouble_since = 0.0
        self._thread = threading.Thread(target=self._run, name="ship", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is not sent stays in the spool."""
        self._stopping.set()
        self._work.set()
        self._thread.join(timeout=delivery.REQUEST_TIMEOUT_S)

    def wake(self) -> None:
        """There may be something to send. Also a hint to have serve ready."""
        self._work.set()

    @property
    def trouble(self) -> str | None:
        """Why nothing is taken at the moment, or None."""
        return self._trouble

    @property
    def place(self) -> str:
        """Where segments go, without credentials."""
        return self._delivery.place

    def wait_for(self, segment_ids: Collection[uuid.UUID], timeout_s: float) -> bool:
        """Wait until the store has these segments; False on timeout, or where it takes nothing for a while,
        as a store that is down must not hold up every verdict."""
        wanted = set(segment_ids)
        self.wake()
        deadline = time.monotonic() + timeout_s
        with self._progress:
            while self._spool.holds(wanted):
                until = deadline if self._trouble is None else min(deadline, self._trouble_since + PATIENCE_S)
                if (left := until - time.monotonic()) <= 0:
                    return False
                self._progress.wait(min(left, PATIENCE_S))
        return True

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            if not failures:
                if not self._work.wait(self._stay_every_s):
                    self._stay()
                    continue
                self._work.clear()
            try:
                self._send_pending()
                failures, self._trouble = 0, None
            except (GuardError, httpx.HTTPError, OSError) as error:
                if self._trouble is None:
                    self._trouble_since = time.monotonic()
                    _log.warning("nothing can be shipped at the moment: %s", error)
                with self._progress:
                    self._trouble = str(error)
                    self._progress.notify_all()
                self._delivery.close()
                self._stopping.wait(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
        self._delivery.close()

    def _stay(self) -> None:
        """Have the service stay, as verdicts will need it; one that cannot be reached is no trouble yet."""
        if not self._busy():
            return
        try:
            self._delivery.stay()
        except (GuardError, httpx.HTTPError, OSError):
            self._delivery.close()

    def _send_pending(self) -> None:
        try:
            self._send_all()
        except httpx.ConnectError:
            # The node's own serve ends when it is idle. To begin it anew takes its time, and is no trouble.
            self._delivery.close()
            self._send_all()

    def _send_all(self) -> None:
        while segments := self._spool.pending():
            for group in _groups(segments):
                if self._stopping.is_set():
                    return
                for segment, refusal in self._delivery.deliver(group):
                    if refusal is None:
                        self._acknowledge(segment)
                    else:
                        _log.error("segment %s was refused: %s", segment.id, refusal)
                        self._spool.quarantine(segment, refusal)

    def _acknowledge(self, stored: Segment) -> None:
        self._spool.acknowledge(stored)
        self._on_shipped(stored)
        with self._progress:
            self._progress.notify_all()


def _groups(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """The segments in their order, neighbours that are small together."""
    group: list[Segment] = []
    for one in segments:
        if group and (len(group) == TOGETHER or sum(s.size_bytes for s in [*group, one]) > TOGETHER_BYTES):
            yield group
            group = []
        group.append(one)
    if group:
        yield group
