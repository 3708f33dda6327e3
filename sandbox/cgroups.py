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
import itertools
import os
import random
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from invigilator.profiles.limits import LimitValues
from invigilator.profiles.policy import PhaseName
from invigilator.sandbox import sweeping
from invigilator.sandbox.base import LimitHit, SandboxError
from invigilator.sandbox.cgroupfiles import (
    EMPTY_TIMEOUT_S,
    LONGEST_PAUSE_S,
    SHORTEST_PAUSE_S,
    await_frozen,
    counter,
    kill,
    kill_one_by_one,
    made_in,
    pass_on,
    removed,
    write_limits,
)
from invigilator.sandbox.disklimits import DiskLimits
from invigilator.sandbox.disks import Disks
from invigilator.sandbox.hierarchies import DISKS_V1, Hierarchies

PHASES: tuple[PhaseName, ...] = ("setup", "agent", "verify")
FAMILY = "invigilator"
_numbers = itertools.count()


@dataclass(slots=True)
class SandboxCgroups:
    """The cgroups of one sandbox."""

    v2: Path
    init: Path
    limited: Path
    leaves: dict[PhaseName, Path]
    v1: dict[str, Path]
    limits: LimitValues
    disks: DiskLimits | None = None

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

    def signal(self, phase: PhaseName, number: int) -> None:
        """To every process of a leaf; after SIGKILL it is empty."""
        if number == signal.SIGKILL:
            self.kill(phase)
            return
        for pid in self.processes(phase):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def populated(self, phase: PhaseName) -> bool:
        """Whether a process is in a phase's leaf."""
        return bool(counter(self.leaves[phase] / "cgroup.events", "populated"))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing of the sandbox runs inside. `SandboxError` where it cannot be brought to a stand."""
        leaves = [self.leaves[phase] for phase in PHASES if self.populated(phase)]
        try:
            with self.disks.lifted() if self.disks and leaves else contextlib.nullcontext():
                for leaf in leaves:
                    (leaf / "cgroup.freeze").write_text("1")
                await_frozen(leaves)
            yield
        finally:
            for leaf in leaves:
                (leaf / "cgroup.freeze").write_text("0")

    def kill(self, phase: PhaseName) -> None:
        """Kill all of a leaf and wait until it is empty; the leaf can be used again.

        Not by `cgroup.kill`: where it was written once, Linux (seen on 6.18) kills at birth whatever is later
        cloned into the cgroup from outside.
        """
        if self.populated(phase):
            with self.disks.lifted() if self.disks else contextlib.nullcontext():
                self._empty(self.leaves[phase])

    def _empty(self, leaf: Path) -> None:
        deadline = time.monotonic() + EMPTY_TIMEOUT_S
        while counter(leaf / "cgroup.events", "populated"):
            if time.monotonic() > deadline:
                raise SandboxError(f"processes of {leaf} do not end")
            # Frozen, they cannot fork away from the kill.
            (leaf / "cgroup.freeze").write_text("1")
            kill_one_by_one(leaf)
            (leaf / "cgroup.freeze").write_text("0")
            time.sleep(0.001)

    def oom_kills(self) -> int:
        """Processes killed since the sandbox's start because its memory was full."""
        if "memory" in self.v1:
            return counter(self.v1["memory"] / "memory.oom_control", "oom_kill")
        return counter(self.limited / "memory.events", "oom_kill")

    def pids_refused(self) -> int:
        """Forks refused because the sandbox had as many processes as it may."""
        return counter(self.v1.get("pids", self.limited) / "pids.events", "max")

    def cpu_held_back(self) -> int:
        """Periods in which the sandbox wanted more processor time than it may have."""
        return counter(self.v1.get("cpu", self.limited) / "cpu.stat", "nr_throttled")

    def limits_hit(self) -> list[LimitHit]:
        """Memory, pids and processor time, where their limits were reached, and how often."""
        hits = (
            LimitHit("memory", self.oom_kills(), self.limits.memory_bytes),
            LimitHit("pids", self.pids_refused(), self.limits.pids),
            LimitHit("cpu", self.cpu_held_back(), self.limits.cpu_quota_us),
            *(self.disks.hits() if self.disks else ()),
        )
        return [hit for hit in hits if hit.value]

    def remove(self, init: int | None = None) -> None:
        """Kill what is left, and remove the folders. `init`: a pidfd of the sandbox's init, whose end is the
        end of all its processes."""
        if self.disks:
            self.disks.lift()
        if init is not None:
            kill(self.v2)
            poller = select.poll()
            poller.register(init, select.POLLIN)
            poller.poll(EMPTY_TIMEOUT_S * 1000)
        deadline, pause_s = time.monotonic() + EMPTY_TIMEOUT_S, SHORTEST_PAUSE_S
        # Init's last: Linux takes a process out of its cgroup a little after it has told of its end.
        others = [one for one in (*self.leaves.values(), *self.v1.values(), self.limited) if one != self.v2]
        remaining = [*others, self.init, self.v2]
        while remaining := [folder for folder in remaining if not removed(folder)]:
            if time.monotonic() > deadline:
                raise SandboxError(f"the cgroup {remaining[0]} does not become empty")
            kill(self.v2)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class Cgroups:
    """The cgroups of one agent."""

    def __init__(self, hierarchies: Hierarchies | None = None) -> None:
        self.hierarchies = found = hierarchies or Hierarchies.find()
        self.name = f"{os.getpid()}-{sweeping.start_of(os.getpid())}/{next(_numbers)}"
        self._locks: list[int] = []
        parent = found.v2_root if found.limits_in_v2 else found.v2
        self._v2 = parent / FAMILY / self.name
        self._v1 = {name: folder / FAMILY / self.name for name, folder in found.v1.items()}
        for folder in self.folders:
            self._locks.append(sweeping.make(folder))
        if found.limits_in_v2:
            for folder in (parent, parent / FAMILY, self._v2.parent, self._v2):
                pass_on(folder, found.v2_controllers)

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
                removed(folder)
            raise

    def change(self, made: SandboxCgroups, limits: LimitValues) -> None:
        """Other limits for a sandbox that runs. `SandboxError` where the kernel takes one not, as where more
        memory is in use; those before it are in force then."""
        self._limit_v2(made.limited, limits)
        for controller, files in limits.v1().items():
            # Both limits of memory are of one value, and that with swap may never be the lower one.
            rising = limits.memory_bytes > made.limits.memory_bytes
            if folder := made.v1.get(controller):
                write_limits(folder, dict(reversed(files.items())) if rising else files)
            elif controller in self._v1 and not _pointless(controller, limits):
                raise SandboxError(f"the sandbox was made without a limit of {controller}")
        if limits.io and not made.limits.io:
            raise SandboxError("the sandbox was made without limits of disks")
        made.limits = limits
        if made.disks:
            self.limit_disks(made, made.disks.disks)

    def limit_disks(self, made: SandboxCgroups, disks: Disks) -> None:
        """Put a sandbox's limits of disks in force on these, where a controller can."""
        if (made.limits.io or made.disks) and (controller := self.hierarchies.disks):
            folder = made.v1.get(controller, made.limited)
            made.disks = DiskLimits(folder, controller == DISKS_V1, made.limits.io, disks)
            made.disks.put()

    def sweep(self) -> int:
        """Remove what dead agents left; the number of sandboxes removed."""
        families = [folder.parent.parent for folder in self.folders]
        return sum(sweeping.sweep_family(family, index == 0) for index, family in enumerate(families))

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

        def furnish(parent: Path, name: str) -> Path:
            folders.append(made_in(parent, name))
            return folders[-1]

        v2, names = folders[0], _names()
        limited = v2
        if self.hierarchies.limits_in_v2:
            pass_on(v2, self.hierarchies.v2_controllers)
            limited = furnish(v2, next(names))
        init = furnish(v2, next(names))
        leaves: dict[PhaseName, Path] = {phase: furnish(limited, next(names)) for phase in PHASES}
        made = SandboxCgroups(v2, init, limited, leaves, {}, limits)
        self._limit_v2(limited, limits)
        for controller, files in limits.v1().items():
            if controller in self._v1 and not _pointless(controller, limits):
                made.v1[controller] = furnish(self._v1[controller], v2.name)
                write_limits(made.v1[controller], files)
        if limits.io and DISKS_V1 in self._v1:
            made.v1[DISKS_V1] = furnish(self._v1[DISKS_V1], v2.name)
        return made

    def _limit_v2(self, folder: Path, limits: LimitValues) -> None:
        wanted = {
            file: value
            for file, value in limits.v2().items()
            if (controller := file.split(".")[0]) not in self._v1
            and controller in self.hierarchies.v2_controllers
        }
        write_limits(folder, wanted)


def _names() -> Iterator[str]:
    """Names that tell nothing, no two alike."""
    return map(str, random.SystemRandom().sample(range(1000, 10_000), len(PHASES) + 2))


def _pointless(controller: str, limits: LimitValues) -> bool:
    """A quota of all processors is none, and costs."""
    return controller == "cpu" and limits.cpu_quota_us >= limits.cpu_period_us * (os.cpu_count() or 1)
