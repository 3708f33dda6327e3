"""Connections that keep nobody out: a request has to come, and its answer to be taken, in good time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from typing import Any, ClassVar, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from invigilator.guard.api.access import PEER_PREFIX

Stage = Literal["waiting", "headers", "body", "answering", "draining"]

WAIT_S = 15.0
"""How long a connection may be open without a request."""
HEADERS_S = 10.0
"""From a request's first byte to the end of its headers."""
DRAIN_S = 10.0
"""How long a body goes on being read after its answer was sent, so that the sender gets to see the answer."""
CHECK_S = 20.0
"""How often a body or an answer under way is looked at."""
BYTES_PER_CHECK = 64 << 10
"""What has to have moved since the last look: some 3 KiB/s, which any network does and no idler."""
PEER_MOST = 256
ALL_MOST = 2048

_quiet = logging.getLogger("invigilator.serve.http")
_quiet.setLevel(logging.ERROR)
"""A line for each request that is no HTTP would let a stranger fill the disk."""


class Connections:
    """The open connections by peer. Past a limit the oldest goes on which no request is being answered."""

    def __init__(self, peer_most: int = PEER_MOST, all_most: int = ALL_MOST) -> None:
        self._peer_most = peer_most
        self._all_most = all_most
        self._peers: dict[str, OrderedDict[TimelyProtocol, None]] = {}

    def add(self, link: TimelyProtocol) -> None:
        """Count a new connection; it is closed itself where all of its peer's are at work."""
        mine = self._peers.setdefault(link.peer, OrderedDict())
        mine[link] = None
        if len(mine) > self._peer_most:
            self._close_oldest_idle(mine)
        elif sum(map(len, self._peers.values())) > self._all_most:
            self._close_oldest_idle(max(self._peers.values(), key=len))

    def remove(self, link: TimelyProtocol) -> None:
        """Count a connection no more."""
        mine = self._peers.get(link.peer)
        if mine is not None:
            mine.pop(link, None)
            if not mine:
                del self._peers[link.peer]

    def _close_oldest_idle(self, links: OrderedDict[TimelyProtocol, None]) -> None:
        idle = next((link for link in links if not link.is_answering), None)
        gone = idle if idle is not None else next(reversed(links))
        # It counts no more from now on, though its end comes with the loop's next turn.
        self.remove(gone)
        gone.transport.abort()


class TimelyProtocol(H11Protocol):
    """HTTP whose client address, on a Unix socket, is the peer's user id as the kernel tells it, and whose
    every stage has a deadline (uvicorn itself has one only between requests)."""

    everyone: ClassVar[Connections] = Connections()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _quiet
        self.peer = ""
        self._stage: Stage = "answering"
        self._deadline: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._received = 0

    @property
    def is_answering(self) -> bool:
        """Whether a whole request is here and its answer is not yet out."""
        return self._stage == "answering"

    def connection_made(self, transport: Any) -> None:
        """Write the peer's credentials where the application looks for an address."""
        super().connection_made(transport)
        link = transport.get_extra_info("socket")
        if link is not None and link.family == socket.AF_UNIX:
            credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid = (int.from_bytes(credentials[at : at + 4], "little") for at in (0, 4))
            self.client = (f"{PEER_PREFIX}{uid}", pid)
        self.peer = self.client[0] if self.client else ""
        self._enter("waiting", WAIT_S)
        self.everyone.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self.everyone.remove(self)
        self._enter("draining", None)
        self._stop_writing_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data, and start the clock of the stage that it leads to."""
        self._received += len(data)
        if self._stage == "waiting":
            self._enter("headers", HEADERS_S)
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        """The answer is out: wait for the next request, or a little for the rest of this one's body."""
        if self.conn.their_state is h11.SEND_BODY:
            self._enter("draining", DRAIN_S)
        else:
            self._enter("waiting", WAIT_S)
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        """The client takes its answer more slowly than it comes: see that it takes it at all."""
        super().pause_writing()
        self._stop_writing_clock()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client has taken enough."""
        super().resume_writing()
        self._stop_writing_clock()

    def _settle(self) -> None:
        state = self.conn.their_state
        if self.transport.is_closing():
            return
        if state is h11.IDLE:
            if self._stage in ("body", "answering", "draining"):
                self._enter("waiting", WAIT_S)
        elif state is not h11.SEND_BODY:
            self._enter("answering", None)
        elif self._stage not in ("body", "draining"):
            self._enter("body", None)
            self._watch_body(self._received)

    def _enter(self, stage: Stage, limit_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._stage = stage
        self._deadline = None if limit_s is None else self.loop.call_later(limit_s, self._end)

    def _end(self) -> None:
        """Close; what is still to be written goes out first, if the client takes it."""
        self.transport.close()
        left = self.transport.get_write_buffer_size()
        if left and self._writing is None:
            self._watch_writing(left)

    def _watch_body(self, before: int) -> None:
        def look() -> None:
            if self.flow.read_paused or self._received - before >= BYTES_PER_CHECK:
                self._watch_body(self._received)
            else:
                self.transport.abort()

        self._deadline = self.loop.call_later(CHECK_S, look)

    def _watch_writing(self, before: int) -> None:
        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if before - left >= min(BYTES_PER_CHECK, before):
                self._watch_writing(left)
            else:
                self.transport.abort()

        self._writing = self.loop.call_later(CHECK_S, look)

    def _stop_writing_clock(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
