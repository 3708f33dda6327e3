"""A serve that ended for idleness is begun anew: while that takes its time, shipping is in no trouble."""

from __future__ import annotations

import threading
import uuid
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

import pytest

from invigilator.guard import ship
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
    """Takes everything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
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

    monkeypatch.setattr(ship, "ensure_serve", ensured)
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
