"""This node's agent and service from outside: whether they run, what they say, start to stay, end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from invigilator.guard.errors import GuardError, UnreachableError
from invigilator.guard.home import Home, connect_unix
from invigilator.guard.node import IDLE_VARIABLE, agent_connection, ensure_serve, require_root

END_TIMEOUT_S = 60.0
FOREVER = "inf"


@dataclass(frozen=True, slots=True)
class Daemon:
    """One of the two: where it listens."""

    name: str
    address: Path
    kind: socket.SocketKind

    def pid(self) -> int | None:
        """Its process id as the kernel tells it, or None where nobody listens."""
        with contextlib.suppress(OSError), connect_unix(self.address, self.kind) as link:
            raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", raw)[0])
        return None


@dataclass(frozen=True, slots=True)
class Done:
    """What was done with a daemon, and the process that it was done with."""

    done: Literal["started", "runs already", "ended", "does not run"]
    pid: int | None = None

    def __str__(self) -> str:
        return self.done if self.pid is None else f"{self.done}, process {self.pid}"


def daemons(home: Home) -> tuple[Daemon, Daemon]:
    """The agent and the service of a home."""
    return (
        Daemon("agent", home.agent_socket, socket.SOCK_SEQPACKET),
        Daemon("serve", home.serve_socket, socket.SOCK_STREAM),
    )


def examine(home: Home) -> dict[str, dict[str, Any]]:
    """What each says of itself; starts nothing."""
    agent, serve = daemons(home)
    found: dict[str, dict[str, Any]] = {"home": {"folder": str(home.root)}}
    found["agent"] = agent_says(home) if agent.pid() else not_running(agent)
    found["serve"] = serve_says(home) if serve.pid() else not_running(serve)
    return found


def not_running(daemon: Daemon) -> dict[str, Any]:
    """That it does not run, or that this user cannot tell."""
    hidden = daemon.address.parent.exists() and not os.access(daemon.address, os.R_OK | os.W_OK)
    unknown = daemon.address.exists() and hidden
    return {"running": None, "why": "this user may not ask"} if unknown else {"running": False}


def agent_says(home: Home) -> dict[str, Any]:
    """The agent's status."""
    return {"running": True, **asyncio.run(ask_agent(home))}


async def ask_agent(home: Home) -> dict[str, Any]:
    """The agent's answer to `status`."""
    from invigilator.guard.link import Link

    link = await Link.open(home)
    try:
        answer = await link.ask("status")
    finally:
        await link.close()
    facts = {name: value for name, value in answer.items() if name not in ("id", "ok")}
    if isinstance(began := facts.get("started_at"), float):
        facts["started_at"] = datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds")
    return facts


def serve_says(home: Home) -> dict[str, Any]:
    """The service's health, whether its store is open or not."""
    import httpx

    from invigilator.guard.connection import Address, Connection

    link = Connection(Address.locate(home=home.root))
    path = link.socket_path()
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=10.0) as client:
            return {"running": True, **client.get("http://serve/v1/health").json()}
    except httpx.HTTPError as error:
        return {"running": True, "why": f"it does not answer: {error}"}
    finally:
        link.close()


def stay(home: Home) -> dict[str, Done]:
    """Have both run without an idle limit; what was done, by name."""
    require_root("keeping the agent")
    done: dict[str, Done] = {}
    os.environ[IDLE_VARIABLE] = FOREVER
    for daemon in daemons(home):
        pid = daemon.pid()
        if pid is not None and stays(pid):
            done[daemon.name] = Done("runs already", pid)
            continue
        if pid is not None:
            end_one(home, daemon, pid, force=False)
        if daemon.name == "agent":
            agent_connection(home).close()
        else:
            ensure_serve(home)
        done[daemon.name] = Done("started", daemon.pid())
    return done


def stays(pid: int) -> bool:
    """Whether a daemon was started without an idle limit."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    limits = [after for word, after in pairwise(words) if word in ("--idle", "--idle-timeout")]
    return limits in ([], [FOREVER])


def end(home: Home, *, force: bool) -> dict[str, Done]:
    """End both, the agent first, as it ships to the service; what was done, by name."""
    done: dict[str, Done] = {}
    for daemon in daemons(home):
        pid = daemon.pid()
        if pid is None:
            done[daemon.name] = Done("does not run")
            continue
        end_one(home, daemon, pid, force=force)
        done[daemon.name] = Done("ended", pid)
    return done


def end_one(home: Home, daemon: Daemon, pid: int, *, force: bool) -> None:
    """End a daemon and wait until it is gone; GuardError while rollouts run, unless forced."""
    if daemon.name == "agent" and not force:
        running = asyncio.run(ask_agent(home)).get("rollouts", 0)
        if running:
            fix = "wait for them, or use --force: they then end as failed"
            raise GuardError(f"{running} rollouts run", where=str(home.root), fix=fix)
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        gone, _, _ = select.select([process], [], [], END_TIMEOUT_S)
    except PermissionError:
        raise GuardError(f"process {pid} is another user's", where=daemon.name, fix="become root") from None
    finally:
        os.close(process)
    if not gone:
        raise UnreachableError(f"process {pid} does not end", where=daemon.name, fix=f"kill -9 {pid}")
