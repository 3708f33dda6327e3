"""`guard serve` under a service manager: it says when it can be asked, that it lives, and that it ends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from serving import serving

from invigilator.guard.home import Home


def test_serve_says_when_it_is_ready_that_it_lives_and_that_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = tmp_path / "notify"
        manager.bind(str(address))
        manager.settimeout(120)
        address.chmod(0o666)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        monkeypatch.setenv("WATCHDOG_USEC", "10000")
        with serving(Home(tmp_path / "home"), wait=False) as service:
            monkeypatch.delenv("NOTIFY_SOCKET")
            assert manager.recv(100) == b"READY=1"
            assert service.client().get("/v1/health").status_code in (200, 503)
            assert manager.recv(100) == b"WATCHDOG=1"
        heard = b""
        while heard != b"STOPPING=1":
            heard = manager.recv(100)
            assert heard in (b"WATCHDOG=1", b"STOPPING=1")
