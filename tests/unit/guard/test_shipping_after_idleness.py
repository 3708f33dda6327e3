"""A serve that ended for idleness is begun anew: while that takes its time, shipping is in no trouble. While
rollouts run it does not end."""

from __future__ import annotations

import threading
import uuid
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any, ClassVar

import pytest

from invigilator.guard import delivery, ship
from invigilator.guard.home import Home


class OneSegment:
    """What a spool is to the shipper, with one small segment in it, and the segment too."""

    size_bytes = 1

    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.stored = False

    def pending(self) -> list[Any]:
        return [] if self.stored else [self]

    def holds(self, _: object) -> bool:
        return not self.stored

    def acknowledge(self, _: object) -> None:
        self.stored = True

    def header(self) -> str:
        return "{}"

    def read_bytes(self) -> bytes:
        return b"x"


class Takes(BaseHTTPRequestHandler):
    """Takes everything, and notes what it is asked for."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(204)
        self.end_headers()

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: object) -> None:
        pass


def test_to_begin_an_idle_serve_anew_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ship.URL_VARIABLE, raising=False)
    ended, anew = tmp_path / "ended.sock", tmp_path / "anew.sock"
    server = UnixStreamServer(str(anew), Takes)
    beginning, go = threading.Event(), threading.Event()
    calls = iter([ended, anew])

    def ensured(_: Home) -> Path:
        if (address := next(calls)) == anew:
            beginning.set()
            assert go.wait(30)
        return address

    monkeypatch.setattr(delivery, "ensure_serve", ensured)
    spool: Any = OneSegment()
    shipper = ship.Shipper(Home(tmp_path), spool, lambda _: None)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    shipper.start()
    try:
        shipper.wake()
        assert beginning.wait(30)
        assert shipper.trouble is None
        go.set()
        assert shipper.wait_for([spool.id], 30) and shipper.trouble is None
    finally:
        shipper.stop()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("busy", [True, False])
def test_while_rollouts_run_and_nothing_is_to_be_sent_serve_is_told_to_stay(
    busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ship.URL_VARIABLE, raising=False)
    address = tmp_path / "serve.sock"
    server = UnixStreamServer(str(address), Takes)
    monkeypatch.setattr(delivery, "ensure_serve", lambda _home: address)
    monkeypatch.setattr(Takes, "asked", [])
    monkeypatch.setenv("INVIGILATOR_IDLE_S", "0.1")
    looked = threading.Semaphore(0)

    def rollouts() -> bool:
        looked.release()
        return busy

    spool: Any = OneSegment()
    spool.stored = True
    shipper = ship.Shipper(Home(tmp_path), spool, lambda _: None, rollouts)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    shipper.start()
    try:
        for _ in range(3):
            assert looked.acquire(timeout=30)
        assert len(Takes.asked) >= (2 if busy else 0) and set(Takes.asked) <= {"/v1/stay"}
        assert bool(Takes.asked) is busy and shipper.trouble is None
    finally:
        shipper.stop()
        server.shutdown()
        server.server_close()


def test_a_serve_that_cannot_be_reached_for_that_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ship.URL_VARIABLE, raising=False)
    monkeypatch.setattr(delivery, "ensure_serve", lambda _home: tmp_path / "nobody.sock")
    monkeypatch.setenv("INVIGILATOR_IDLE_S", "0.1")
    looked = threading.Semaphore(0)
    spool: Any = OneSegment()
    spool.stored = True
    shipper = ship.Shipper(Home(tmp_path), spool, lambda _: None, lambda: looked.release() is None)
    shipper.start()
    try:
        for _ in range(3):
            assert looked.acquire(timeout=30)
        assert shipper.trouble is None
    finally:
        shipper.stop()
