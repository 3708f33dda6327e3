"""Spool to store: one thread sends segments, oldest first, until serve has acknowledged each.

A segment stays in the spool until serve says that it is stored, and serve knows a segment that it has seen:
sent any number of times, it is stored once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence

import httpx

from invigilator.guard.errors import GuardError
from invigilator.guard.home import Home
from invigilator.guard.node import ensure_serve, idle_s
from invigilator.incidents.segment import Segment, SegmentError
from invigilator.incidents.spool import Spool

_log = logging.getLogger("invigilator.ship")

URL_VARIABLE = "INVIGILATOR_SERVE_URL"
TOKEN_VARIABLE = "INVIGILATOR_TOKEN"
REQUEST_TIMEOUT_S = 60.0
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
PATIENCE_S = 5.0
"""How long a verdict waits for a store that does not answer: long enough for one that is just starting."""
TOGETHER = 16
TOGETHER_BYTES = 1 << 20
"""How many small segments go in one request, and what they hold together at most."""
STAY_EVERY_S = 20.0
"""How often a service that is not asked for anything is told that rollouts run, at most."""
_FINAL_REFUSALS = (400, 409, 413, 422)
_UNKNOWN_THERE = (404, 405)
"""A service of an earlier version takes segments one by one."""


class ShipError(GuardError):
    """Serve did not take a segment; it will be sent again."""


class Shipper:
    """Sends what `spool` holds. `on_shipped` is called for each acknowledged segment, from the thread.
    While `busy` says that rollouts run, a service that ends when idle is kept from it.

    Serve is this node's own, started where none runs, or the one that `$INVIGILATOR_SERVE_URL` names (with
    the bearer token in `$INVIGILATOR_TOKEN`).
    """

    def __init__(
        self,
        home: Home,
        spool: Spool,
        on_shipped: Callable[[Segment], None],
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._home = home
        self._spool = spool
        self._on_shipped = on_shipped
        self._busy = busy
        self._stay_every_s = min(STAY_EVERY_S, max(0.5, idle_s() / 3))
        self._work = threading.Event()
        self._progress = threading.Condition()
        self._stopping = threading.Event()
        self._client: httpx.Client | None = None
        self._folder = -1
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
        self._thread.join(timeout=REQUEST_TIMEOUT_S)

    def wake(self) -> None:
        """There may be something to send. Also a hint to have serve ready."""
        self._work.set()

    @property
    def trouble(self) -> str | None:
        """Why nothing is taken at the moment, or None."""
        return self._trouble

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
                self._disconnect()
                self._stopping.wait(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
        self._disconnect()

    def _stay(self) -> None:
        """Have the service stay, as verdicts will need it; one that cannot be reached is no trouble yet."""
        if not self._busy():
            return
        try:
            self._connect().get("/v1/stay")
        except (GuardError, httpx.HTTPError, OSError):
            self._disconnect()

    def _send_pending(self) -> None:
        try:
            self._send_all(self._connect())
        except httpx.ConnectError:
            # The node's own serve ends when it is idle. To begin it anew takes its time, and is no trouble.
            self._disconnect()
            self._send_all(self._connect())

    def _send_all(self, client: httpx.Client) -> None:
        while segments := self._spool.pending():
            for group in _groups(segments):
                if self._stopping.is_set():
                    return
                if len(group) == 1 or not self._send_together(client, group):
                    for segment in group:
                        self._send(client, segment)

    def _send_together(self, client: httpx.Client, group: Sequence[Segment]) -> bool:
        """Send a group in one request; False where one of it is damaged or refused, to be found by itself."""
        try:
            parts = [part for one in group for part in (one.header().encode(), b"\n", one.read_bytes())]
        except SegmentError:
            return False
        headers = {"Content-Type": "application/octet-stream"}
        answer = client.post("/v1/segments/together", content=b"".join(parts), headers=headers)
        if answer.status_code in (*_FINAL_REFUSALS, *_UNKNOWN_THERE):
            return False
        if not answer.is_success:
            raise ShipError(_problem(answer))
        self._acknowledge(group)
        return True

    def _send(self, client: httpx.Client, segment: Segment) -> None:
        try:
            content = segment.read_bytes()
        except SegmentError as error:
            _log.error("segment %s: %s", segment.id, error)
            self._spool.quarantine(segment, str(error))
            return
        headers = {"X-Segment": segment.header(), "Content-Type": "application/vnd.apache.arrow.file"}
        answer = client.post("/v1/segments", content=content, headers=headers)
        if answer.status_code in _FINAL_REFUSALS:
            _log.error("segment %s was refused: %s", segment.id, answer.text)
            self._spool.quarantine(segment, answer.text)
            return
        if not answer.is_success:
            raise ShipError(_problem(answer))
        self._acknowledge([segment])

    def _acknowledge(self, stored: Sequence[Segment]) -> None:
        for segment in stored:
            self._spool.acknowledge(segment)
            self._on_shipped(segment)
        with self._progress:
            self._progress.notify_all()

    def _connect(self) -> httpx.Client:
        if self._client is None:
            self._client = self._remote(url) if (url := os.environ.get(URL_VARIABLE)) else self._local()
        return self._client

    def _remote(self, url: str) -> httpx.Client:
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S)

    def _local(self) -> httpx.Client:
        address = ensure_serve(self._home)
        # A deep path does not fit a socket's address; one through a descriptor of its folder always does.
        self._folder = os.open(address.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        transport = httpx.HTTPTransport(uds=f"/proc/self/fd/{self._folder}/{address.name}")
        return httpx.Client(base_url="http://serve", transport=transport, timeout=REQUEST_TIMEOUT_S)

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


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


def _problem(answer: httpx.Response) -> str:
    """What serve says is wrong, from its problem document (RFC 9457), or its raw answer."""
    try:
        told = answer.json()
        parts = [told["detail"], told.get("fix") or ""]
        return "; ".join(str(part) for part in parts if part)
    except (ValueError, KeyError, TypeError):
        return f"serve answered {answer.status_code}: {answer.text[:200]}"
