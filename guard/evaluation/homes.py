"""State folders of one's own, and the end of the daemons that were started in them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from invigilator.guard.agent import RING_VARIABLE
from invigilator.guard.evaluation.suite import Case
from invigilator.guard.home import Home, connect_unix
from invigilator.guard.node import IDLE_VARIABLE, agent_connection

RING_BYTES = {"small-rings": 256 << 10, "middle-rings": 2 << 20}
"""Size of each of the sensor's rings, for agents that are to lose events: of middle ones, only what floods
them can have filled them by itself."""
END_TIMEOUT_S = 20.0


class Homes:
    """One state folder, with its own agent, for every kind of agent that the cases ask for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._homes: dict[str, Home] = {}

    def __enter__(self) -> Homes:
        return self

    def __exit__(self, *_: object) -> None:
        for home in self._homes.values():
            end_daemons(home)

    def of(self, case: Case) -> Path:
        """The state folder whose agent runs `case`; the agent runs when this returns."""
        with self._lock:
            if case.agent not in self._homes:
                self._homes[case.agent] = self._start(case.agent)
            return self._homes[case.agent].root

    def _start(self, kind: str) -> Home:
        home = Home(self._folder / f"home-{kind}")
        extra = {RING_VARIABLE: str(RING_BYTES[kind])} if kind in RING_BYTES else {}
        with _environment({IDLE_VARIABLE: "600", **extra}):
            agent_connection(home).close()
        return home


def end_daemons(home: Home) -> None:
    """End the agent and the service that work in `home`, and wait until they are gone."""
    for address, kind in (
        (home.agent_socket, socket.SOCK_SEQPACKET),
        (home.serve_socket, socket.SOCK_STREAM),
    ):
        with contextlib.suppress(OSError), connect_unix(address, kind) as connection:
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _end(struct.unpack("3i", raw)[0])


def _end(pid: int) -> None:
    process = os.pidfd_open(pid)
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(process, number)
            if select.select([process], [], [], END_TIMEOUT_S)[0]:
                break
    finally:
        os.close(process)
    # Where it is this process's child, it is a zombie until somebody asks.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
