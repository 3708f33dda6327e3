"""Agents' folders of cgroups: made, held while the agent lives, and removed by another once it is dead."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.cgroupfiles import EMPTY_TIMEOUT_S, below, children, kill, removed


def is_alive(agent: str) -> bool:
    """Whether the process that an agent's name tells of runs, in this process's pid namespace."""
    pid, _, start = agent.partition("-")
    return pid.isdigit() and str(start_of(int(pid))) == start


def start_of(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 where there is none (proc(5), /proc/pid/stat)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat[stat.rindex(")") + 2 :].split()[19])


def make(folder: Path) -> int:
    """Make a backend's folder; a descriptor that holds the agent's, which is above it, for as long as it is
    open."""
    for _ in range(100):
        try:
            for part in (folder.parent.parent, folder.parent):
                part.mkdir(exist_ok=True)
            lock = locked(folder.parent, fcntl.LOCK_SH)
            if lock is None:  # another agent is about to remove it
                time.sleep(0.01)
                continue
            try:
                folder.mkdir(exist_ok=True)
                return lock
            except BaseException:
                os.close(lock)
                raise
        except FileNotFoundError:  # another agent, leaving, took away what was empty for a moment
            continue
    raise SandboxError(f"cannot make the cgroup {folder}")


def locked(folder: Path, how: int) -> int | None:
    """A descriptor that holds a lock on a folder; None where another's lock is in the way."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


def sweep_family(family: Path, v2: bool) -> int:
    """Remove the folders of dead agents; how many sandboxes had some, told for v2 alone."""
    swept = 0
    for agent in children(family):
        pid, _, start = agent.name.partition("-")
        with contextlib.suppress(OSError):  # what cannot be told of is left alone
            if not pid.isdigit() or str(start_of(int(pid))) == start:
                continue
            if (lock := locked(agent, fcntl.LOCK_EX)) is None:
                continue
            try:
                swept += _sweep_agent(agent, v2)
            finally:
                os.close(lock)
    return swept


def _sweep_agent(agent: Path, v2: bool) -> int:
    swept = 0
    if v2:
        swept = sum(len(children(backend)) for backend in children(agent))
        kill(agent)
    deadline = time.monotonic() + EMPTY_TIMEOUT_S
    remaining: Sequence[Path] = [*below(agent), agent]
    while (remaining := [one for one in remaining if not removed(one)]) and time.monotonic() < deadline:
        time.sleep(0.001)
    return swept
