"""How long a daemon that is being started is waited for."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from invigilator.guard import node
from invigilator.guard.errors import UnreachableError
from invigilator.guard.home import Home


def waited_s(work_until_s: float) -> float:
    """When one that uses a processor until then, and never answers, is given up."""
    start = node.Start(1000.0)
    second = 0.0
    while start.goes_on(1000.0 + second, min(second, work_until_s)):
        second += 1.0
    return second


def test_one_that_stands_still_is_given_up_after_a_minute() -> None:
    assert waited_s(0.0) == node.START_TIMEOUT_S


def test_one_that_works_on_a_slow_processor_is_waited_for() -> None:
    assert waited_s(200.0) == 200.0 + node.START_TIMEOUT_S


def test_one_that_works_for_ever_is_given_up_too() -> None:
    assert waited_s(1e9) == node.START_LONGEST_S


@pytest.fixture
def home() -> Iterator[Home]:
    # A Unix socket's name is short.
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        yield Home(Path(folder)).make()


def test_a_daemon_that_does_not_answer_is_ended(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def popen(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        made.append(begin(*words, **options))
        return made[-1]

    monkeypatch.setattr(node, "START_LONGEST_S", 0.2)
    monkeypatch.setattr(node.subprocess, "Popen", popen)
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with pytest.raises(UnreachableError, match="the serve did not answer within"):
        node._reach(home, "serve", home.serve_socket, socket.SOCK_STREAM, command)
    assert [one.wait(60) for one in made] == [-signal.SIGKILL]


LISTENS = """# invigilator
import socket, sys
link = socket.socket(socket.AF_UNIX)
sys.stdin.readline()
if sys.argv[1] == "listen":
    link.bind("serve.sock")
    link.listen()
    sys.stdin.readline()
"""


@pytest.mark.parametrize("does", ["listen", "end"])
def test_one_that_another_is_starting_is_waited_for_as_long_as_it_lives(
    does: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = subprocess.Popen([sys.executable, "-c", LISTENS, does], stdin=subprocess.PIPE, cwd=home.run)
    go = other.stdin
    assert go is not None
    (home.run / "serve.lock").write_text(f"{other.pid}\n")
    found = node._holder

    def holder(*where: Any) -> int | None:
        # By now the own one has ended, as the other holds the lock: only now the other goes on.
        pid = found(*where)
        go.write(b"go on\n")
        go.flush()
        if does == "end":
            other.wait(30)
        return pid

    monkeypatch.setattr(node, "_holder", holder)
    refused = [sys.executable, "-c", "import sys; sys.exit('guard: another runs here')"]
    try:
        if does == "listen":
            node._reach(home, "serve", home.serve_socket, socket.SOCK_STREAM, refused).close()
        else:
            with pytest.raises(UnreachableError, match="the serve did not start: another runs here"):
                node._reach(home, "serve", home.serve_socket, socket.SOCK_STREAM, refused)
    finally:
        other.kill()
        other.communicate()
