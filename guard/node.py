"""The daemons of this node: found where they run, started under a lock where they do not."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from invigilator.guard.errors import GuardError, MissingError, NotFoundError, UnreachableError
from invigilator.guard.home import HOME_VARIABLE, Home, connect_unix
from invigilator.guard.notice import tell
from invigilator.guard.packages import AGENT, SERVICE, require_packages

START_TIMEOUT_S = 60.0
"""How long one that is being started may stand still."""
START_LONGEST_S = 900.0
"""How long one may start at all. On a slow processor, or a disk never read before, it works for minutes; who
ends it then, to begin anew, has it never start."""
PATIENCE_S = 1.0
"""Who waits longer for a start is told what for."""
WHAT_STARTS = {
    "agent": "the agent (the kernel checks the sensor's programs)",
    "serve": "the service (it opens the store)",
}
IDLE_VARIABLE = "INVIGILATOR_IDLE_S"
IDLE_DEFAULT_S = 60.0
"""How long a daemon that was started on demand stays after its last use."""

_KEPT_VARIABLES = (
    "DOCKER_HOST",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH",
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "PYTHONPATH",
)


def idle_s() -> float:
    """Seconds of idleness after which a daemon started on demand ends."""
    text = os.environ.get(IDLE_VARIABLE) or str(IDLE_DEFAULT_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise GuardError(f"{text!r} is no number of seconds", where=IDLE_VARIABLE, fix="write one, or inf")
    return seconds


def require_root(what: str) -> None:
    """`MissingError` where this process is not root."""
    if os.geteuid() != 0:
        raise MissingError(
            f"{what} needs root (namespaces, cgroups, eBPF); this is uid {os.geteuid()}",
            fix="run it with sudo; `guard doctor` shows what works without",
        )


def _require_own(home: Home) -> None:
    """`MissingError` where neither the folder nor what it would be made in is this user's to write."""
    existing = next(folder for folder in (home.root, *home.root.parents) if os.access(folder, os.F_OK))
    if os.access(existing, os.W_OK | os.X_OK):
        return
    raise MissingError(
        f"no service runs for {home.root}, and only who owns that folder can start it; "
        f"this is uid {os.geteuid()}",
        fix=f"`sudo guard up`, or set {HOME_VARIABLE} to a folder of your own",
    )


def agent_connection(home: Home) -> socket.socket:
    """A connection to this node's agent, which is started where none runs."""
    require_root("the agent")
    require_packages("the agent", AGENT)
    home.make()
    return _reach(home, "agent", home.agent_socket, socket.SOCK_SEQPACKET, _agent_command())


def running_agent(home: Home) -> socket.socket:
    """A connection to this node's agent; `NotFoundError` where none runs: then no rollout does."""
    require_root("the agent's client")
    try:
        return connect_unix(home.agent_socket, socket.SOCK_SEQPACKET)
    except OSError:
        raise NotFoundError(
            "no rollout runs here: there is no agent",
            where=str(home.root),
            fix=f"set {HOME_VARIABLE}, or --home, to the state folder of who began it",
        ) from None


def ensure_serve(home: Home) -> Path:
    """The socket of this node's serve, which is started where none runs (by the home's owner only)."""
    with contextlib.suppress(OSError):
        connect_unix(home.serve_socket, socket.SOCK_STREAM).close()
        return home.serve_socket
    _require_own(home)
    require_packages("the service", SERVICE)
    home.make()
    _reach(home, "serve", home.serve_socket, socket.SOCK_STREAM, _serve_command()).close()
    return home.serve_socket


def _agent_command() -> list[str]:
    return [sys.executable, "-m", "invigilator.guard.agent", "--idle", str(idle_s())]


def _serve_command() -> list[str]:
    return [sys.executable, "-m", "invigilator.guard.cli.main", "serve", "--idle-timeout", str(idle_s())]


def _reach(
    home: Home, name: str, address: Path, kind: socket.SocketKind, command: Sequence[str]
) -> socket.socket:
    with contextlib.suppress(OSError):
        return connect_unix(address, kind)
    with home.lock("start", wait=True):
        # Whoever held the lock before may have started it meanwhile.
        with contextlib.suppress(OSError):
            return connect_unix(address, kind)
        return _start(home, name, address, kind, command)


def _start(
    home: Home, name: str, address: Path, kind: socket.SocketKind, command: Sequence[str]
) -> socket.socket:
    log = home.run / f"{name}.log"
    began_at = log.stat().st_size if log.exists() else 0
    with log.open("ab") as out:
        daemon = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env=_environment(home),
            start_new_session=True,
        )
    start = Start(time.monotonic())
    told = False
    starting: int = daemon.pid
    while start.goes_on(time.monotonic(), processor_s(starting)):
        if start.waited_s > PATIENCE_S and not told:
            tell(f"starting {WHAT_STARTS[name]}: some seconds, once")
            told = True
        with contextlib.suppress(OSError):
            return connect_unix(address, kind)
        ended = daemon.poll() is not None
        if ended and starting == daemon.pid:
            # Whoever else begins it at this moment, a unit of systemd's or a person, is as good.
            starting = _holder(home, name) or starting
        if ended and (starting == daemon.pid or processor_s(starting) < 0):
            raise UnreachableError(f"the {name} did not start: {_last_line(log, began_at)}", where=str(log))
        time.sleep(0.01)
    daemon.kill()
    raise UnreachableError(f"the {name} did not answer within {start.waited_s:.0f} s", where=str(log))


def _holder(home: Home, name: str) -> int | None:
    """The process that holds a daemon's lock, as the lock's file tells, where it lives and is the guard's."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((home.run / f"{name}.lock").read_text())
        if b"invigilator" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


@dataclass(slots=True)
class Start:
    """How long a daemon that is being started is waited for: as long as it works, within bounds. `began_s`:
    when (monotonic)."""

    began_s: float
    waited_s: float = 0.0
    _worked_s: float = 0.0
    _work_s: float = -1.0

    def goes_on(self, now_s: float, processor_s: float) -> bool:
        """Whether to wait on, at `now_s`; by then it has used that much of a processor."""
        self.waited_s = now_s - self.began_s
        if processor_s > self._work_s:
            self._worked_s, self._work_s = self.waited_s, processor_s
        return self.waited_s < min(START_LONGEST_S, self._worked_s + START_TIMEOUT_S)


def processor_s(pid: int) -> float:
    """Processor time that a process has used (proc(5), `stat`); -1 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return -1.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _environment(home: Home) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    ours = {name: value for name, value in os.environ.items() if name.startswith("INVIGILATOR_")}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **kept, **ours, HOME_VARIABLE: str(home.root)}


def _last_line(log: Path, began_at: int) -> str:
    with log.open("rb") as file:
        file.seek(began_at)
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("guard: ") if lines else "it said nothing"
