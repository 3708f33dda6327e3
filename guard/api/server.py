"""The `guard serve` process: listen, drop every privilege, open the store, answer, end when idle."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import uvicorn

from invigilator.guard.api import app as application
from invigilator.guard.api.access import Access, trusted_uids
from invigilator.guard.api.connections import WAIT_S, TimelyProtocol
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.listening import BACKLOG, listen_locally, listen_tcp
from invigilator.guard.api.outbox import Outbox
from invigilator.guard.api.privileges import drop, hand_over
from invigilator.guard.api.start import ServeSettings
from invigilator.guard.api.tokens import TokenFile
from invigilator.guard.api.traffic import Traffic
from invigilator.guard.errors import GuardError
from invigilator.guard.supervisor import Supervisor
from invigilator.incidents.store import Limits, Store

HANDSHAKE_S = 10.0
"""How long a stranger may take for TLS's beginning."""
IDLE_LEAST_S = 2.0
"""Who was asked to come back in a second has to find it."""
LATE_MODULES = ("chdb", "clickhouse_connect", "pandas", "pyarrow.csv", "uvicorn.lifespan.on")
_log = logging.getLogger("invigilator.serve")


class Server(uvicorn.Server):
    """uvicorn that ends when idle, holding the start lock while it does so."""

    def __init__(
        self,
        config: uvicorn.Config,
        gate: StoreGate,
        traffic: Traffic,
        settings: ServeSettings,
        lock: int,
        manager: Supervisor,
        secured: Sequence[socket.socket] = (),
    ) -> None:
        super().__init__(config)
        self._secured = secured
        self._tls = settings.tls
        self._manager = manager
        self._gate = gate
        self._traffic = traffic
        limit_s = settings.idle_timeout_s
        self._idle_timeout_s = None if limit_s is None else max(limit_s, IDLE_LEAST_S)
        self._start_lock = lock

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in peace on a signal; uvicorn would send it to itself again, and end by it."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        for link in self._secured:
            server = await asyncio.get_running_loop().create_server(
                self._protocol, sock=link, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S, backlog=BACKLOG
            )
            self.servers.append(server)
        self._manager.ready()

    def _protocol(self) -> TimelyProtocol:
        """One connection's, as uvicorn makes it for the listeners without TLS."""
        state = self.lifespan.state
        return TimelyProtocol(config=self.config, server_state=self.server_state, app_state=state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say that the end begins, and answer what is being asked."""
        self._manager.stopping()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Whether to end now; called ten times a second."""
        self._manager.alive()
        if self._gate.state == "opening":
            self._traffic.touch()
        if self._idle_timeout_s is not None and self._traffic.idle_s() > self._idle_timeout_s:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._start_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _log.info("idle for %.0f s: ending", self._idle_timeout_s)
                return True
        return await super().on_tick(counter)


def serve(settings: ServeSettings, manager: Supervisor) -> None:
    """Run until a signal or until idle. GuardError where another serves this home, or it cannot listen."""
    home = settings.home.make()
    held = hold(home.run / "serve.lock")
    start_lock = os.open(home.run / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    tokens = TokenFile(home.tokens)
    hand_over(home.store, settings.uid)
    hand_over(home.tokens, settings.uid, folder=False)
    hand_over(home.audit, settings.uid)
    opener: Callable[[str], Store] = Store.open
    import_late_modules()
    listeners, over_tcp = [listen_locally(home)], listen_tcp(settings)
    if settings.tls is None:
        listeners += over_tcp
    _allow_descriptors()
    trusted = trusted_uids()
    drop(settings.uid)
    gate = StoreGate(settings.store, opener)
    traffic = Traffic()
    limits = replace(Limits(), time_s=settings.query_time_s)
    app = application.create(
        gate, Access(tokens.find, trusted), Outbox(home.store / "outbox"), traffic, limits, home.audit
    )
    config = uvicorn.Config(
        app,
        http=TimelyProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(WAIT_S),
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=64 << 10,
    )
    secured = over_tcp if settings.tls is not None else []
    server = Server(config, gate, traffic, settings, start_lock, manager, secured)
    asyncio.run(server.serve(sockets=listeners))
    os.close(held)


def _allow_descriptors() -> None:
    """A descriptor a connection, as many as this process may have: clients must not use up the store's."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def import_late_modules() -> None:
    """Import what the store's libraries would import only when used: by then it may be out of reach."""
    for name in LATE_MODULES:
        importlib.import_module(name)


def hold(path: Path) -> int:
    """A descriptor that holds the lock of the one serving process until it is closed; writes the pid."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        problem = f"guard serve already runs here as process {holder}"
        raise GuardError(problem, where=str(path.parent.parent), fix="use it, or end it first") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
