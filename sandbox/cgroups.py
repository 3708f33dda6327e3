"""Cgroups of sandboxes: a v2 leaf for each phase, and the limits in whichever hierarchy has them.

Below the agent's own cgroup (the root's, where v2 has the controllers, since a folder with processes cannot
pass controllers on): `invigilator/AGENT/BACKEND/SANDBOX`, and in it in v2 one for init and a
leaf for each phase. Those have random numbers for names: what is inside can see its neighbours' names, and
shall not learn the phase from them. AGENT is the agent's process id and start, and the agent holds a lock on
the folder, so that another can tell whether it is dead: by both, since neither process ids nor clocks mean
the same in every namespace.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from invigilator.profiles.limits import LimitValues
from invigilator.profiles.policy import PhaseName
from invigilator.sandbox.base import LimitHit, SandboxError, UnavailableError

PHASES: tuple[PhaseName, ...] = ("setup", "agent", "verify")
CONTROLLERS = ("memory", "pids", "cpu")
FAMILY = "invigilator"
EMPTY_TIMEOUT_S = 10.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0001, 0.005
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where this process's cgroups are. `v1`: controller → folder; `v2_controllers`: those that v2 has."""

    v2: Path
    v2_root: Path
    v2_controllers: frozenset[str]
    v1: Mapping[str, Path]

    @classmethod
    def find(cls) -> Hierarchies:
        """Read from /proc; `UnavailableError` without a v2 hierarchy."""
        own = _own_cgroups()
        v2_mount, v1_mounts = _mounts()
        if v2_mount is None:
            raise UnavailableError("no cgroup v2 hierarchy: mount -t cgroup2 none /sys/fs/cgroup/unified")
        controllers = frozenset((v2_mount / "cgroup.controllers").read_text().split())
        v1 = {name: _below(v1_mounts[name], own.get(name, "/")) for name in CONTROLLERS if name in v1_mounts}
        return cls(_below(v2_mount, own.get("", "/")), v2_mount, controllers, v1)

    @property
    def missing(self) -> tuple[str, ...]:
        """Controllers that neither hierarchy has."""
        return tuple(name for name in CONTROLLERS if name not in self.v1 and name not in self.v2_controllers)

    @property
    def limits_in_v2(self) -> bool:
        """Whether v2 carries the limits."""
        return any(name in self.v2_controllers for name in CONTROLLERS if name not in self.v1)


@dataclass(slots=True)
class SandboxCgroups:
    """The cgroups of one sandbox."""

    v2: Path
    init: Path
    limited: Path
    leaves: dict[PhaseName, Path]
    v1: dict[str, Path]
    limits: LimitValues
    told: dict[str, int] = field(default_factory=dict)

    def identities(self) -> dict[PhaseName, int]:
        """Cgroup v2 id of each leaf: the inode number of its folder."""
        return {phase: os.stat(leaf).st_ino for phase, leaf in self.leaves.items()}  # noqa: PTH116

    def processes(self, phase: PhaseName) -> list[int]:
        """Process ids in a phase's leaf, in this process's pid namespace. `SandboxError` where the leaf does
        not tell: that would not mean that there are none."""
        try:
            return [int(word) for word in (self.leaves[phase] / "cgroup.procs").read_text().split()]
        except OSError as error:
            raise SandboxError(f"the cgroup {self.leaves[phase]} cannot be read: {error.strerror}") from error

    def populated(self, phase: PhaseName) -> bool:
        """Whether a process is in a phase's leaf."""
        return bool(_counter(self.leaves[phase] / "cgroup.events", "populated"))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing of the sandbox runs inside. `SandboxError` where it cannot be brought to a stand."""
        leaves = [self.leaves[phase] for phase in PHASES if self.populated(phase)]
        try:
            for leaf in leaves:
                (leaf / "cgroup.freeze").write_text("1")
            _await_frozen(leaves)
            yield
        finally:
            for leaf in leaves:
                (leaf / "cgroup.freeze").write_text("0")

    def kill(self, phase: PhaseName) -> None:
        """Kill all of a leaf and wait until it is empty; the leaf can be used again.

        Not by `cgroup.kill`: where it was written once, Linux (seen on 6.18) kills at birth whatever is later
        cloned into the cgroup from outside.
        """
        leaf = self.leaves[phase]
        deadline = time.monotonic() + EMPTY_TIMEOUT_S
        while _counter(leaf / "cgroup.events", "populated"):
            if time.monotonic() > deadline:
                raise SandboxError(f"processes of {leaf} do not end")
            # Frozen, they cannot fork away from the kill.
            (leaf / "cgroup.freeze").write_text("1")
            _kill_one_by_one(leaf)
            (leaf / "cgroup.freeze").write_text("0")
            time.sleep(0.001)

    def oom_kills(self) -> int:
        """Processes killed since the sandbox's start because its memory was full."""
        if "memory" in self.v1:
            return _counter(self.v1["memory"] / "memory.oom_control", "oom_kill")
        return _counter(self.limited / "memory.events", "oom_kill")

    def pids_refused(self) -> int:
        """Forks refused because the sandbox had as many processes as it may."""
        return _counter(self.v1.get("pids", self.limited) / "pids.events", "max")

    def cpu_held_back(self) -> int:
        """Periods in which the sandbox wanted more processor time than it may have."""
        return _counter(self.v1.get("cpu", self.limited) / "cpu.stat", "nr_throttled")

    def limits_hit(self) -> list[LimitHit]:
        """Memory, pids and processor time, where their limits were reached, and how often."""
        hits = (
            LimitHit("memory", self.oom_kills(), self.limits.memory_bytes),
            LimitHit("pids", self.pids_refused(), self.limits.pids),
            LimitHit("cpu", self.cpu_held_back(), self.limits.cpu_quota_us),
        )
        return [hit for hit in hits if hit.value]

    def remove(self, init: int | None = None) -> None:
        """Kill what is left, and remove the folders. `init`: a pidfd of the sandbox's init, whose end is the
        end of all its processes."""
        if init is not None:
            _kill(self.v2)
            poller = select.poll()
            poller.register(init, select.POLLIN)
            poller.poll(EMPTY_TIMEOUT_S * 1000)
        deadline, pause_s = time.monotonic() + EMPTY_TIMEOUT_S, SHORTEST_PAUSE_S
        # Init's last: Linux takes a process out of its cgroup a little after it has told of its end.
        others = [one for one in (*self.leaves.values(), *self.v1.values(), self.limited) if one != self.v2]
        remaining = [*others, self.init, self.v2]
        while remaining := [folder for folder in remaining if not _removed(folder)]:
            if time.monotonic() > deadline:
                raise SandboxError(f"the cgroup {remaining[0]} does not become empty")
            _kill(self.v2)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class Cgroups:
    """The cgroups of one agent."""

    def __init__(self, hierarchies: Hierarchies | None = None) -> None:
        self.hierarchies = found = hierarchies or Hierarchies.find()
        self.name = f"{os.getpid()}-{_start_of(os.getpid())}/{next(_numbers)}"
        self._locks: list[int] = []
        parent = found.v2_root if found.limits_in_v2 else found.v2
        self._v2 = parent / FAMILY / self.name
        self._v1 = {name: folder / FAMILY / self.name for name, folder in found.v1.items()}
        for folder in self.folders:
            self._locks.append(_make(folder))
        if found.limits_in_v2:
            for folder in (parent, parent / FAMILY, self._v2.parent, self._v2):
                _pass_on(folder, found.v2_controllers)

    @property
    def folders(self) -> list[Path]:
        """This agent's folder in each hierarchy, the v2 one first."""
        return [self._v2, *self._v1.values()]

    @property
    def agent(self) -> str:
        """This agent's name, by which others tell whether it is alive (`is_alive`)."""
        return self.name.partition("/")[0]

    def make(self, name: str, limits: LimitValues) -> SandboxCgroups:
        """The cgroups of a sandbox, with its limits in force, and no process in them."""
        v2 = self._v2 / name
        try:
            v2.mkdir()
        except FileNotFoundError as error:
            raise SandboxError(
                f"somebody removed the agent's cgroup {self._v2}: start the agent anew"
            ) from error
        made = [v2]
        try:
            return self._furnish(made, limits)
        except BaseException:
            for folder in reversed(made):  # no process is in them yet
                _removed(folder)
            raise

    def change(self, made: SandboxCgroups, limits: LimitValues) -> None:
        """Other limits for a sandbox that runs. `SandboxError` where the kernel takes one not, as where more
        memory is in use; those before it are in force then."""
        self._limit_v2(made.limited, limits)
        for controller, files in limits.v1().items():
            # Both limits of memory are of one value, and that with swap may never be the lower one.
            rising = limits.memory_bytes > made.limits.memory_bytes
            if folder := made.v1.get(controller):
                _write_limits(folder, dict(reversed(files.items())) if rising else files)
            elif controller in self._v1 and not _pointless(controller, limits):
                raise SandboxError(f"the sandbox was made without a limit of {controller}")
        made.limits = limits

    def sweep(self) -> int:
        """Remove what dead agents left; the number of sandboxes removed."""
        return sum(
            _sweep_family(folder.parent.parent, index == 0) for index, folder in enumerate(self.folders)
        )

    def close(self) -> None:
        """Remove this agent's own folders, which must be empty of sandboxes."""
        for folder in self.folders:
            for one in (folder, folder.parent, folder.parent.parent):
                with contextlib.suppress(OSError):  # others' are in it
                    one.rmdir()
        while self._locks:
            os.close(self._locks.pop())

    def _furnish(self, folders: list[Path], limits: LimitValues) -> SandboxCgroups:
        """What belongs into the first of the folders and beside it; what is made is added to them."""

        def made_in(parent: Path, name: str) -> Path:
            folders.append(_made(parent, name))
            return folders[-1]

        v2, names = folders[0], _names()
        limited = v2
        if self.hierarchies.limits_in_v2:
            _pass_on(v2, self.hierarchies.v2_controllers)
            limited = made_in(v2, next(names))
        init = made_in(v2, next(names))
        leaves: dict[PhaseName, Path] = {phase: made_in(limited, next(names)) for phase in PHASES}
        made = SandboxCgroups(v2, init, limited, leaves, {}, limits)
        self._limit_v2(limited, limits)
        for controller, files in limits.v1().items():
            if controller in self._v1 and not _pointless(controller, limits):
                made.v1[controller] = made_in(self._v1[controller], v2.name)
                _write_limits(made.v1[controller], files)
        return made

    def _limit_v2(self, folder: Path, limits: LimitValues) -> None:
        wanted = {
            file: value
            for file, value in limits.v2().items()
            if (controller := file.split(".")[0]) not in self._v1
            and controller in self.hierarchies.v2_controllers
        }
        _write_limits(folder, wanted)


def _await_frozen(leaves: Sequence[Path]) -> None:
    deadline, pause_s = time.monotonic() + EMPTY_TIMEOUT_S, SHORTEST_PAUSE_S
    while moving := [leaf for leaf in leaves if not _stands(leaf)]:
        if time.monotonic() > deadline:
            raise SandboxError(f"processes of {moving[0]} cannot be halted")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _stands(leaf: Path) -> bool:
    events = leaf / "cgroup.events"
    return bool(_counter(events, "frozen")) or not _counter(events, "populated")


def _made(folder: Path, name: str) -> Path:
    """A new folder in another."""
    made = Path(f"{folder}/{name}")
    made.mkdir()
    return made


def _names() -> Iterator[str]:
    """Names that tell nothing, no two alike."""
    return map(str, random.SystemRandom().sample(range(1000, 10_000), len(PHASES) + 2))


def _pointless(controller: str, limits: LimitValues) -> bool:
    """A quota of all processors is none, and costs."""
    return controller == "cpu" and limits.cpu_quota_us >= limits.cpu_period_us * (os.cpu_count() or 1)


def _own_cgroups() -> dict[str, str]:
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    return own


def _mounts() -> tuple[Path | None, dict[str, Path]]:
    v2: Path | None = None
    v1: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(fields.split()[4].replace("\\040", " "))
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup2":
            v2 = point
        elif kind == "cgroup":
            v1.update({name: point for name in options.split(",") if name in CONTROLLERS})
    return v2, v1


def _below(mount: Path, path: str) -> Path:
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def is_alive(agent: str) -> bool:
    """Whether the process that an agent's name tells of runs, in this process's pid namespace."""
    pid, _, start = agent.partition("-")
    return pid.isdigit() and str(_start_of(int(pid))) == start


def _start_of(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 where there is none (proc(5), /proc/pid/stat)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat[stat.rindex(")") + 2 :].split()[19])


def _make(folder: Path) -> int:
    """Make a backend's folder; a descriptor that holds the agent's, which is above it, for as long as it is
    open."""
    for _ in range(100):
        try:
            for part in (folder.parent.parent, folder.parent):
                part.mkdir(exist_ok=True)
            lock = _locked(folder.parent, fcntl.LOCK_SH)
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


def _locked(folder: Path, how: int) -> int | None:
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


def _pass_on(folder: Path, controllers: frozenset[str]) -> None:
    words = " ".join(f"+{name}" for name in CONTROLLERS if name in controllers)
    try:
        (folder / "cgroup.subtree_control").write_text(words)
    except OSError as error:
        raise UnavailableError(f"cannot pass controllers on from {folder}: {error.strerror}") from error


def _write_limits(folder: Path, files: Mapping[str, str]) -> None:
    for name, value in files.items():
        file = f"{folder}/{name}"
        try:
            _write(file, value)
        except FileNotFoundError:
            if name not in ("memory.memsw.limit_in_bytes", "memory.swap.max", "memory.oom.group"):
                raise UnavailableError(f"no {file}: the kernel cannot limit that") from None
        except OSError as error:
            raise SandboxError(f"cannot limit the sandbox: {file} ← {value}: {error.strerror}") from error


def _write(file: str, text: str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _counter(file: Path, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def _kill(folder: Path) -> None:
    try:
        _write(f"{folder}/cgroup.kill", "1")
    except FileNotFoundError:
        if folder.exists():  # before Linux 5.14
            _kill_one_by_one(folder)


def _kill_one_by_one(folder: Path) -> None:
    for inner in [folder, *_folders(folder)]:
        for word in (inner / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), 9)


def _removed(folder: Path) -> bool:
    try:
        os.rmdir(folder)  # noqa: PTH106
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _folders(folder: Path) -> Iterator[Path]:
    """All folders below one, children first."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _folders(Path(entry.path))
                yield Path(entry.path)


def _sweep_family(family: Path, v2: bool) -> int:
    removed = 0
    for agent in _children(family):
        pid, _, start = agent.name.partition("-")
        with contextlib.suppress(OSError):  # what cannot be told of is left alone
            if not pid.isdigit() or str(_start_of(int(pid))) == start:
                continue
            if (lock := _locked(agent, fcntl.LOCK_EX)) is None:
                continue
            try:
                removed += _sweep_agent(agent, v2)
            finally:
                os.close(lock)
    return removed


def _sweep_agent(agent: Path, v2: bool) -> int:
    removed = 0
    if v2:
        removed = sum(len(_children(backend)) for backend in _children(agent))
        _kill(agent)
    deadline = time.monotonic() + EMPTY_TIMEOUT_S
    remaining: Sequence[Path] = [*_folders(agent), agent]
    while (remaining := [one for one in remaining if not _removed(one)]) and time.monotonic() < deadline:
        time.sleep(0.001)
    return removed


def _children(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [one for one in folder.iterdir() if one.is_dir()]
    return []
