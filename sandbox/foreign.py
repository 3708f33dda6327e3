"""A cgroup that others made and fill: who is in it, what they see, when it is over."""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from invigilator.sandbox import places
from invigilator.sandbox.base import Mount, SandboxError
from invigilator.sandbox.mounts import mount_table, without_covers

STREAMS = (1, 2)
TERMINALS = range(136, 144)
"""Major numbers of Unix98 terminals (Documentation/admin-guide/devices.txt)."""


@dataclass(frozen=True, slots=True)
class Inhabitant:
    """A process: its id in this process's namespace, its arguments, and its start (CLOCK_BOOTTIME, s)."""

    pid: int
    command: str
    started_s: float


class ForeignCgroup:
    """A cgroup v2 folder of others'."""

    def __init__(self, place: str, *, make: bool = False) -> None:
        """`place`: from the hierarchy's root. `make`: make the folder where there is none yet, as its runtime
        is about to; `SandboxError` where there is no such cgroup."""
        self.place = place
        try:
            self.folder = Path(places.folder_of(place, _hierarchies()))
        except places.PlaceError as error:
            raise SandboxError(str(error)) from None
        self.made = make and _made(self.folder)
        if not (self.folder / "cgroup.events").exists():
            raise SandboxError(
                f"there is no cgroup {self.place} in the v2 hierarchy: /proc/PID/cgroup of one of its"
                " processes names it, in the line that begins with 0::"
            )

    @property
    def identity(self) -> int:
        """Its cgroup v2 id."""
        return self.folder.stat().st_ino

    def below(self) -> list[int]:
        """Ids of the cgroups below it."""
        return [folder.stat().st_ino for folder in _tree(self.folder) if folder != self.folder]

    def threads(self) -> list[int]:
        """Ids of all threads in it and below, in this process's namespace."""
        return [tid for folder in _tree(self.folder) for tid in _numbers(folder / "cgroup.threads")]

    def processes(self) -> list[Inhabitant]:
        """All processes in it and below, oldest first."""
        pids = {_process_of(tid) for tid in self.threads()} - {0}
        found = [one for pid in pids if (one := _inhabitant(pid)) is not None]
        return sorted(found, key=lambda one: (one.started_s, one.pid))

    def populated(self) -> bool | None:
        """Whether a process is in it or below; None where it is gone."""
        with contextlib.suppress(OSError):
            return "populated 1" in (self.folder / "cgroup.events").read_text()
        return None

    def wait(self, timeout_s: float, seen: bool) -> None:
        """Until it may be populated otherwise than `seen`, or gone, or the time is over."""
        with contextlib.suppress(OSError), (self.folder / "cgroup.events").open() as events:
            if ("populated 1" in events.read()) == seen:
                poll = select.poll()
                poll.register(events, select.POLLPRI)
                poll.poll(timeout_s * 1000)

    def mounts(self, *, any_root: bool) -> list[Mount]:
        """What its oldest process sees; empty where it is gone, and, unless `any_root`, while its root is
        still this machine's: so is a container's before its first program."""
        for one in self.processes()[:1]:
            with contextlib.suppress(OSError):
                seen = mount_table(one.pid)
                if any_root or _root_of(seen) != _root_of(mount_table(os.getpid())):
                    return without_covers(seen)
        return []

    @contextlib.contextmanager
    def streams(self) -> Iterator[dict[tuple[int, int], int]]:
        """What the oldest process's standard output and error go to, where that is a pipe, a socket or a
        terminal: descriptors for stat(2) alone, by (device, inode)."""
        opened: list[int] = []
        try:
            for one in self.processes()[:1]:
                for number in STREAMS:
                    with contextlib.suppress(OSError):
                        opened.append(os.open(f"/proc/{one.pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC))
            known = {fd: os.fstat(fd) for fd in opened}
            yield {(is_.st_dev, is_.st_ino): fd for fd, is_ in known.items() if _is_recorded(is_)}
        finally:
            for fd in opened:
                os.close(fd)

    def close(self) -> None:
        """Look no more; a folder that was made here and is still empty goes."""
        if self.made:
            with contextlib.suppress(OSError):
                self.folder.rmdir()


def place_here(path: str) -> str:
    """The place that a path names on this machine; `SandboxError` where it names none."""
    try:
        return places.place_of(path, _hierarchies())
    except places.PlaceError as error:
        raise SandboxError(str(error)) from None


def _hierarchies() -> list[places.Hierarchy]:
    return places.hierarchies(Path("/proc/self/mountinfo").read_text())


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise SandboxError(f"the cgroup {folder} cannot be made: {error.strerror}") from error
    return True


def _tree(folder: Path) -> list[Path]:
    """A folder and all below it; what goes meanwhile is left out."""
    found = [folder]
    for one in found:
        with contextlib.suppress(OSError), os.scandir(one) as entries:
            found += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [one for one in found if one.exists()]


def _numbers(file: Path) -> list[int]:
    try:
        return [int(word) for word in file.read_text().split()]
    except OSError:
        return []


def _process_of(tid: int) -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{tid}/status").read_text(errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("Tgid:")).split()[1])
    return 0


def _inhabitant(pid: int) -> Inhabitant | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        words = Path(f"/proc/{pid}/cmdline").read_bytes()[:4096].rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    command = b" ".join(words).decode(errors="replace")
    return Inhabitant(pid, command, int(fields[19]) / os.sysconf("SC_CLK_TCK"))


def _root_of(mounts: Sequence[Mount]) -> tuple[int, bytes] | None:
    found = [mount for mount in mounts if mount.mount_point == b"/"]
    return (found[-1].dev, found[-1].fs_root) if found else None


def _is_recorded(status: os.stat_result) -> bool:
    if stat.S_ISCHR(status.st_mode):
        return os.major(status.st_rdev) in TERMINALS
    return stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)
