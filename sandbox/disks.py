"""The disks that folders lie on, as the kernel limits them: whole ones, by number."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_BLOCK = Path("/sys/dev/block")
_BTRFS = Path("/sys/fs/btrfs")
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class Disk:
    """`number`: MAJOR:MINOR; `name`: its file in /dev."""

    number: str
    name: str


@dataclass(frozen=True, slots=True)
class Disks:
    """`written`: those that the sandbox writes to itself; `read`: the others, from which alone it reads.
    `complete`: whether they are all that there are.

    What it writes to a loop device, the kernel writes on to the disk below: limited there too, it would wait
    twice.
    """

    written: tuple[Disk, ...] = ()
    read: tuple[Disk, ...] = ()
    complete: bool = True

    @classmethod
    def of(cls, written: Iterable[str | Path], read: Iterable[str | Path], devices: Iterable[str]) -> Disks:
        """Those of files at these paths, written or only read, and of devices' own files (/dev/loop0), which
        are written."""
        own, whole = below(written)
        more = [named(device) for device in devices]
        other, rest = below(read)
        own = tuple(dict.fromkeys((*own, *(disk for disk in more if disk is not None))))
        return cls(own, tuple(one for one in other if one not in own), whole and rest and None not in more)


def below(paths: Iterable[str | Path]) -> tuple[tuple[Disk, ...], bool]:
    """Those that the files at these paths lie on, and whether they are all. What lies in memory lies on none;
    of another file system without a device of its own (overlay, NFS) it is not known."""
    mounts = _mounts()
    found: dict[Disk, None] = {}
    complete = True
    for path in paths:
        disks = _of(path, mounts)
        complete = complete and disks is not None
        found.update(dict.fromkeys(disks or ()))
    return tuple(found), complete


def named(device: str) -> Disk | None:
    """The disk of a device's file, such as /dev/loop0; None where it is none."""
    number = os.stat(device).st_rdev  # noqa: PTH116
    return _whole(f"{os.major(number)}:{os.minor(number)}")


def _of(path: str | Path, mounts: dict[str, tuple[str, str]]) -> list[Disk] | None:
    """None where that is not known."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        device = os.fstat(fd).st_dev
        kind, source = mounts.get(_mount_of(fd), ("", ""))
    finally:
        os.close(fd)
    if kind in _IN_MEMORY:
        return []
    if kind == "btrfs":
        return _members(source)
    disk = _whole(f"{os.major(device)}:{os.minor(device)}")
    return None if disk is None else [disk]


def _mount_of(fd: int) -> str:
    for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
        if line.startswith("mnt_id:"):
            return line.split()[1]
    return ""


def _mounts() -> dict[str, tuple[str, str]]:
    """Mount id → (type, source)."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, source, *_ = rest.split(" ")
        found[fields.split(" ", 1)[0]] = (kind, source)
    return found


def _members(source: str) -> list[Disk] | None:
    """All disks of the btrfs of which one has this file."""
    name = os.path.basename(os.path.realpath(source))  # noqa: PTH119
    for devices in _BTRFS.glob("*/devices"):
        names = [one.name for one in devices.iterdir()]
        if name in names:
            disks = [named(f"/dev/{one}") for one in names]
            return [one for one in disks if one is not None] if all(disks) else None
    return None


def _whole(number: str) -> Disk | None:
    """A partition has no limits of its own: those of its disk hold."""
    folder = (_BLOCK / number).resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    try:
        whole = (folder / "dev").read_text().strip()
        event = (folder / "uevent").read_text().splitlines()
    except OSError:
        return None
    name = next((line.removeprefix("DEVNAME=") for line in event if line.startswith("DEVNAME=")), "")
    return Disk(whole, f"/dev/{name}")
