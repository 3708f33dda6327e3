"""What a service manager hears over its socket, and what children of the service do not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from invigilator.guard.supervisor import Supervisor


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """Its socket, and the socket's name as the environment has it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@notify-{os.getpid()}-{id(request)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind("\0" + name[1:] if name[0] == "@" else name)
        link.settimeout(30)
        yield name, link


def test_the_manager_hears_of_start_life_and_end(
    manager: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, link = manager
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    told = Supervisor.from_environment()
    told.ready()
    told.alive()
    told.alive()
    told.stopping()
    heard = [link.recv(100) for _ in range(4)]
    assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()


@pytest.mark.parametrize(
    ("usec", "pid", "signs"), [("3600000000", "", 1), ("", "", 0), ("0", "", 0), ("x", "", 0), ("1", "1", 0)]
)
def test_signs_of_life_come_as_often_as_this_process_is_asked_for_them(
    usec: str,
    pid: str,
    signs: int,
    manager: tuple[str, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, link = manager
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    told = Supervisor.from_environment()
    for _ in range(50):
        told.alive()
    told.stopping()
    assert [link.recv(100) for _ in range(signs + 1)] == [b"WATCHDOG=1"] * signs + [b"STOPPING=1"]


@pytest.mark.parametrize("name", ["", "relative", "/nowhere/notify", "@nobody-there"])
def test_without_a_manager_nothing_is_said_and_nothing_fails(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    told = Supervisor.from_environment()
    told.ready()
    told.alive()
    told.stopping()
