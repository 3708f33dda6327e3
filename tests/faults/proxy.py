"""A connection that fails as connections do: refused, cut, cut before the answer, half closed, stalled."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from pathlib import Path

FAULTS = ("refuse", "cut", "deaf", "half", "stall")
"""refuse: closed at once. cut: reset after some bytes of the request. deaf: the request gets through, and the
answer does not. half: closed in one direction after some bytes of the answer. stall: nothing moves for a
while, then it is reset."""
STALL_S = 0.4
CHUNK = 16 << 10


class Proxy:
    """Listens on loopback and passes connections on to `upstream`: a Unix socket's path, or a loopback port.

    While `stormy`, a part of the connections fails, in ways that are drawn from `choose`.
    """

    def __init__(self, upstream: Path | int, choose: random.Random, share: float) -> None:
        self._upstream = upstream
        self._choose = choose
        self._share = share
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.stormy = False
        self.failed: dict[str, int] = dict.fromkeys(FAULTS, 0)
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Where to connect to."""
        return f"http://127.0.0.1:{self.port}"

    def cut_all(self) -> None:
        """Reset every connection that is open now."""
        with self._guard:
            for link in self._open:
                _reset(link)

    def close(self) -> None:
        """Take no more, and end what is open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._guard:
                    fault = self._draw()
                    limit = self._choose.randrange(1, 60_000)
                threading.Thread(target=self._pass_on, args=(client, fault, limit), daemon=True).start()

    def _draw(self) -> str | None:
        if not self.stormy or self._choose.random() > self._share:
            return None
        fault = self._choose.choice(FAULTS)
        self.failed[fault] += 1
        return fault

    def _pass_on(self, client: socket.socket, fault: str | None, limit: int) -> None:
        if fault == "refuse":
            _reset(client)
            client.close()
            return
        try:
            server = self._reach()
        except OSError:
            _reset(client)
            client.close()
            return
        for link in (client, server):
            if link.family != socket.AF_UNIX:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._guard:
            self._open |= {client, server}
        back = threading.Thread(target=self._pump, args=(server, client, fault, limit, True), daemon=True)
        back.start()
        self._pump(client, server, fault, limit, False)
        back.join()
        with self._guard:
            self._open -= {client, server}
        for link in (client, server):
            link.close()

    def _reach(self) -> socket.socket:
        if isinstance(self._upstream, int):
            return socket.create_connection(("127.0.0.1", self._upstream), timeout=10)
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(self._upstream))
        return link

    def _pump(
        self, source: socket.socket, target: socket.socket, fault: str | None, limit: int, answers: bool
    ) -> None:
        """Pass bytes on until the end, or until the fault strikes."""
        passed = 0
        try:
            while data := source.recv(CHUNK):
                passed += len(data)
                if fault is not None and self._strikes(fault, passed, limit, answers):
                    self._strike(fault, source, target)
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            _reset(source)
            _reset(target)

    @staticmethod
    def _strikes(fault: str, passed: int, limit: int, answers: bool) -> bool:
        if fault == "deaf":
            return answers
        if fault == "half":
            return answers and passed > limit % 400
        return not answers and passed > limit

    @staticmethod
    def _strike(fault: str, source: socket.socket, target: socket.socket) -> None:
        if fault == "stall":
            time.sleep(STALL_S)
        if fault == "half":
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
            return
        _reset(source)
        _reset(target)


def _reset(link: socket.socket) -> None:
    """End a connection by a reset, as a machine that went away does."""
    with contextlib.suppress(OSError):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.shutdown(socket.SHUT_RDWR)
