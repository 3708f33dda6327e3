"""The agent: one process a node, as root; the only reader of the kernel's rings, the parent of every sandbox.

    python -m invigilator.guard.agent [--idle SECONDS]

It listens on the home's agent.sock, which only root may open. Started on demand it ends when idle.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from invigilator.ebpf.sensor import Sensor
from invigilator.guard import backends, refusals, release
from invigilator.guard.errors import GuardError, NotFoundError, UnreachableError
from invigilator.guard.home import Home, LockHeldError, short_address
from invigilator.guard.keep import Keeper
from invigilator.guard.node import require_root
from invigilator.guard.pipeline import Pipeline
from invigilator.guard.rollout import Rollout
from invigilator.guard.services import Services
from invigilator.guard.session import Floor, Session
from invigilator.guard.ship import Shipper
from invigilator.guard.supervisor import Supervisor
from invigilator.guard.wire import Channel
from invigilator.incidents.segment import Segment
from invigilator.incidents.spool import Spool

_log = logging.getLogger("invigilator.agent")

RING_VARIABLE = "INVIGILATOR_RING_BYTES"
"""For evaluations that are to lose events."""
MAKERS = 8
WAITERS_MAX = 16_384
THREAD_STACK_BYTES = 512 << 10
BACKLOG = 4096
SPOOL_FREE_BYTES = 1 << 20
"""Below that much free space on the spool's disk no rollout begins: it could not be recorded."""
IDLE_CHECK_S = 0.5
NAMED_MAX = 10
"""Rollouts that an error names."""
_CLONE_NEWNS = 0x20000
_MS_REC_SLAVE = (1 << 14) | (1 << 19)


def ring_sizes() -> dict[str, int]:
    """Sizes of the sensor's rings where the environment names one (a power of two), else the sensor's own."""
    size = int(os.environ.get(RING_VARIABLE) or 0)
    return dict.fromkeys(("bulk_bytes", "precious_bytes", "string_bytes"), size) if size else {}


class Agent:
    """The node's parts, put together; `run` serves clients until a signal or until idle."""

    def __init__(self, home: Home, idle_s: float | None, manager: Supervisor) -> None:
        self._home = home
        self._manager = manager
        self._idle_s = idle_s
        self._spool = Spool(home.spool, node_id=home.node_id())
        self._sensor = Sensor.open(**ring_sizes())
        self._shipper = Shipper(home, self._spool, self._on_shipped, self._has_rollouts)
        self._pipeline = Pipeline(self._sensor, self._spool, self._shipper.wake)
        self._denials = refusals.open_here(self._sensor)
        self._pipeline.beside(self._denials.step)
        self._services = Services(
            home,
            self._sensor,
            self._pipeline,
            self._shipper,
            Keeper(self._spool, home.rollouts),
            backends.load(home),
            self._denials,
        )
        self._sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()
        self._used_at = time.monotonic()
        self._started_at = time.time()

    async def run(self, listener: socket.socket) -> None:
        """Serve until the end."""
        threading.stack_size(THREAD_STACK_BYTES)
        for backend in self._services.backends.values():
            if (folder := backend.parent_cgroup()) is not None:
                self._sensor.attach_network(folder)
        self._pipeline.start()
        self._shipper.start()
        self._recover()
        with (
            ThreadPoolExecutor(MAKERS, "maker") as makers,
            ThreadPoolExecutor(WAITERS_MAX, "waiter") as waiters,
            _signals(self._ending.set),
        ):
            floor = Floor(
                self._services, makers, waiters, self._find, self._admit, self._status, self._ending.set
            )
            accepting = asyncio.create_task(self._accept(listener, floor))
            watching = asyncio.create_task(self._watch())
            self._manager.ready()
            await self._ending.wait()
            self._manager.stopping()
            accepting.cancel()
            watching.cancel()
            await self._end_sessions(waiters)
        for backend in self._services.backends.values():
            backend.close()
        self._pipeline.stop()
        self._denials.close()
        self._shipper.stop()
        self._sensor.close()
        self._spool.close()

    def _recover(self) -> None:
        swept = sum(backend.sweep() for backend in self._services.backends.values())
        lost = self._services.keeper.recover()
        if swept or lost:
            _log.info("%d sandboxes swept, %d rollouts of a dead agent reported as failed", swept, lost)
        self._shipper.wake()

    async def _accept(self, listener: socket.socket, floor: Floor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listener)
            channel = Channel(connection)
            if channel.peer()[1] != os.geteuid():
                channel.close()
                continue
            task = loop.create_task(self._serve(Session(floor, channel)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, session: Session) -> None:
        self._sessions.add(session)
        try:
            await session.serve()
        finally:
            self._sessions.discard(session)
            self._used_at = time.monotonic()

    async def _watch(self) -> None:
        """End when idle, or when the pipeline has ended: then nothing is watched any more."""
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            if not self._pipeline.alive:
                _log.critical("the pipeline has ended: so does the agent, and every sandbox with it")
                os._exit(1)
            for backend in self._services.backends.values():
                if (folder := backend.parent_cgroup()) is not None and not folder.is_dir():
                    _log.critical(
                        "somebody removed the cgroup %s: the agent ends, the next makes its own", folder
                    )
                    os._exit(1)
            self._manager.alive()
            idle_for = time.monotonic() - self._used_at
            waits = self._shipper.trouble is None and self._spool.pending()
            if self._idle_s is None or self._sessions or waits or idle_for < self._idle_s:
                continue
            # Nobody may be starting or reaching the agent while it decides that nobody does.
            with contextlib.suppress(LockHeldError), self._home.lock("start", wait=False):
                if not self._sessions:
                    self._home.agent_socket.unlink(missing_ok=True)
                    _log.info("idle for %.0f s: ending", idle_for)
                    self._ending.set()
                    return

    async def _end_sessions(self, waiters: ThreadPoolExecutor) -> None:
        loop, why = asyncio.get_running_loop(), "the agent was told to end"
        live = [s.rollout for s in self._sessions if s.rollout is not None]
        await asyncio.gather(*(loop.run_in_executor(waiters, Session.abandon, one, why) for one in live))

    def _find(self, name: str) -> Rollout:
        """The live rollout of that id, or whose sandbox has that UUID."""
        live = [s.rollout for s in self._sessions if s.rollout is not None and s.rollout.live]
        found = [one for one in live if name in (one.order.rollout_id, str(one.sandbox_id))]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(sorted(str(one.sandbox_id) for one in found))
            raise NotFoundError(
                f"rollout {name!r} has {len(found)} sandboxes", fix=f"name one of them: {ids}"
            )
        ids = ", ".join(sorted({repr(one.order.rollout_id) for one in live})[:NAMED_MAX]) or "none"
        raise NotFoundError(f"no rollout {name!r} is running here", fix=f"running: {ids}")

    def _admit(self) -> None:
        """Refuse new work that could not be recorded."""
        if trouble := self._pipeline.trouble:
            raise UnreachableError(f"new rollouts are refused: {trouble}")
        if shutil.disk_usage(self._home.spool).free < SPOOL_FREE_BYTES:
            raise UnreachableError(
                "new rollouts are refused: no space left for their events",
                where=str(self._home.spool),
                fix="free some on its disk",
            )
        self._shipper.wake()

    def _has_rollouts(self) -> bool:
        return any(session.rollout is not None for session in list(self._sessions))

    def _on_shipped(self, segment: Segment) -> None:
        if segment.table == "events":
            self._pipeline.shipped(segment)

    def _status(self) -> Mapping[str, Any]:
        waiting = self._spool.pending()
        return {
            "version": release.version(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "rollouts": sum(1 for s in self._sessions if s.rollout is not None),
            "waiting_segments": len(waiting),
            "waiting_bytes": sum(segment.size_bytes for segment in waiting),
            "spool_trouble": self._pipeline.trouble,
            "ships_to": self._shipper.place,
            "ship_trouble": self._shipper.trouble,
        }


@contextlib.contextmanager
def _signals(end: Any) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _own_mounts() -> None:
    """A mount namespace of the agent's own: what sandboxes mount ends with it, and nobody else sees it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC_SLAVE), None):
        raise GuardError(f"no mount namespace of its own: {os.strerror(ctypes.get_errno())}")


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listen(home: Home) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    home.agent_socket.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        with short_address(home.agent_socket) as address:
            listener.bind(address)
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def run(home: Home, idle_s: float | None) -> None:
    """Be the node's agent. GuardError where it cannot be, or another is."""
    require_root("the agent")
    home.make()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(home.lock("agent", wait=False))
        except LockHeldError as error:
            raise GuardError("an agent runs here already", where=str(home.root), fix="use it") from error
        manager = Supervisor.from_environment()
        _own_mounts()
        _raise_descriptor_limit()
        asyncio.run(_serve(home, idle_s, manager))


async def _serve(home: Home, idle_s: float | None, manager: Supervisor) -> None:
    agent = Agent(home, idle_s, manager)
    await agent.run(_listen(home))


def main() -> None:
    """Entry point of a daemon started on demand."""
    parser = argparse.ArgumentParser(prog="invigilator.guard.agent")
    parser.add_argument("--idle", type=float, default=None, metavar="SECONDS")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        run(Home.locate(), arguments.idle)
    except Exception as error:
        _log.debug("the agent failed", exc_info=True)
        sys.exit(f"guard: {error}")


if __name__ == "__main__":
    main()
