"""How `guard serve` begins: what has to be done before anything that starts a thread is imported."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from invigilator.guard.api.privileges import seclude
from invigilator.guard.home import Home
from invigilator.guard.supervisor import Supervisor

SERVE_UID = 61500
"""No account of that number is needed; Debian gives out 1000 to 59999 to people."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`store`: a folder's path or a ClickHouse URL. `listen`: (host, port) of TCP, or None.

    `idle_timeout_s`: end after that many seconds without a request; None: never. `query_time_s`: limit of a
    user's query. `tls`: what the TCP listener shows its clients; without it it is to be loopback, unless
    `insecure_plaintext`.
    """

    home: Home
    store: str
    uid: int = SERVE_UID
    listen: tuple[str, int] | None = None
    idle_timeout_s: float | None = None
    query_time_s: float = 30.0
    tls: ssl.SSLContext | None = None
    insecure_plaintext: bool = False


def start(settings: ServeSettings) -> None:
    """Serve until a signal or until idle. GuardError where another serves this home, or it cannot listen."""
    settings.home.make()
    manager = Supervisor.from_environment()  # its socket may be out of reach after the next line
    # A mount namespace is a thread's: the libraries' threads have to be born into it.
    seclude(settings.home.root, settings.uid)
    from invigilator.guard.api.server import serve

    serve(settings, manager)
