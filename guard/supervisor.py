"""What a service manager is told, by sd_notify(3)'s protocol: a datagram a message, to its socket.

manager = Supervisor.from_environment()     # before privileges go; says nothing where there is no manager
manager.ready()
manager.alive()                             # as often as one likes: told on as often as is wanted
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLES = ("WATCHDOG_USEC", "WATCHDOG_PID")


class Supervisor:
    """The manager that started this process, or none. `every_s`: within what it wants a sign of life."""

    def __init__(self, link: socket.socket | None = None, every_s: float | None = None) -> None:
        self._link = link
        # Half of the time, as sd_watchdog_enabled(3) recommends.
        self._pause_s = None if every_s is None else every_s / 2
        self._told_s = float("-inf")

    @classmethod
    def from_environment(cls) -> Supervisor:
        """The one that the environment names. The names are taken out of it: children are no service's main
        process."""
        name = os.environ.pop(SOCKET_VARIABLE, "")
        usec, pid = (os.environ.pop(variable, "") for variable in WATCHDOG_VARIABLES)
        if name[:1] not in ("/", "@"):
            return cls()
        link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            link.connect("\0" + name[1:] if name[0] == "@" else name)
        except OSError:
            link.close()
            return cls()
        mine = usec.isdigit() and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(link, int(usec) / 1e6 if mine else None)

    def ready(self) -> None:
        """Clients can connect."""
        self._tell("READY=1")

    def alive(self) -> None:
        """Work goes on; call it only where that is so."""
        now = time.monotonic()
        if self._pause_s is not None and now - self._told_s >= self._pause_s:
            self._told_s = now
            self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The end begins."""
        self._tell("STOPPING=1")

    def _tell(self, what: str) -> None:
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.send(what.encode())
