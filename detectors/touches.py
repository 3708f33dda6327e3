"""What an event does to the objects that it names: the alphabet in which file detectors think.

One system call may touch two objects (rename, link, clone), and one act has many calls (write, pwritev,
truncate, a shared mapping, an ioctl). A `Touch` is (event, object, what was done to it).
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import Mask, Rows
from invigilator.ebpf.events import Flag, Kind, Records

# fcntl.h and stat.h of x86-64 (asm-generic but for O_DIRECTORY on arm64).
O_ACCMODE, O_TRUNC, O_DIRECTORY, O_PATH, O_TMPFILE = 0o3, 0o1000, 0o200000, 0o10000000, 0o20200000
S_IFMT, S_IFDIR = 0o170000, 0o040000
RENAME_EXCHANGE = 2
NR_PIVOT_ROOT = 155
# linux/mount.h: MS_REMOUNT and the propagation flags, which put nothing over a path.
MS_NOTHING_COVERED = 1 << 5 | 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20
AF_UNIX = 1


class Act(enum.IntFlag):
    """What is done to an object."""

    READ = 1
    WRITE = 2
    """Its content changes: write, truncate, a shared writable mapping, data put into it by the kernel."""
    OPENED = 4
    """Opened for writing; nothing is written yet."""
    CREATE = 8
    """The name did not exist before, as far as the call tells."""
    REMOVE = 16
    REPLACE = 32
    """Another object takes the name."""
    META = 64
    """Mode, owner, attributes."""
    COVER = 128
    """Something is mounted over it."""
    LIST = 256
    PROBE = 512
    """Asked about, in vain."""
    LINKED = 1024
    """It gets another name."""
    EXECUTE = 2048
    MAKE_DIR = 4096
    SPEAK = 8192
    """A socket file is connected to, sent to, or bound."""


CHANGE = Act.WRITE | Act.OPENED | Act.CREATE | Act.REMOVE | Act.REPLACE | Act.META | Act.COVER | Act.MAKE_DIR
"""Every act that changes an object or its name."""

_SIMPLE: dict[Kind, Act] = {
    Kind.EXEC: Act.READ | Act.EXECUTE,
    Kind.SYMLINK: Act.CREATE,
    Kind.UNLINK: Act.REMOVE,
    Kind.MKDIR: Act.MAKE_DIR,
    Kind.MKNOD: Act.CREATE,
    Kind.TRUNCATE: Act.WRITE,
    Kind.CHMOD: Act.META,
    Kind.CHOWN: Act.META,
    Kind.XATTR: Act.META,
    Kind.MOUNT: Act.COVER,
    Kind.CLONE_RANGE: Act.WRITE,
    Kind.COPY_RANGE: Act.WRITE,
    Kind.EXCHANGE_RANGE: Act.WRITE | Act.READ,
    Kind.GETDENTS: Act.LIST,
    Kind.MMAP_WRITE: Act.WRITE,
    Kind.WRITE: Act.WRITE,
    Kind.FALLOCATE: Act.WRITE,
    Kind.ACCESS: Act.PROBE,
    Kind.READ: Act.READ,
    Kind.LINK: Act.LINKED,
    Kind.RENAME: Act.REMOVE,
}
_SECOND: dict[Kind, Act] = {
    Kind.RENAME: Act.CREATE,
    Kind.LINK: Act.CREATE,
    Kind.MOUNT: Act.LINKED,
    Kind.CLONE_RANGE: Act.READ,
    Kind.COPY_RANGE: Act.READ,
    Kind.EXCHANGE_RANGE: Act.WRITE | Act.READ,
}
TWO_OBJECTS = tuple(_SECOND)
"""Kinds whose `path2` is a second object's path, not what the process said."""
LINKS_THEMSELVES = (Kind.UNLINK, Kind.RENAME, Kind.LINK, Kind.SYMLINK)
"""Kinds that act on a symbolic link itself, not on what it leads to."""

ActArray = npt.NDArray[np.uint16]
_KINDS = 1 << 8
_FIRST_TABLE = np.zeros(_KINDS, np.uint16)
_SECOND_TABLE = np.zeros(_KINDS, np.uint16)
for _kind, _act in _SIMPLE.items():
    _FIRST_TABLE[_kind] = _act
for _kind, _act in _SECOND.items():
    _SECOND_TABLE[_kind] = _act


@dataclass(frozen=True, slots=True)
class Touches:
    """Touches of protected objects, in event order; every array has shape (n,).

    `row`: the event. `cls`: code of the object's class. `act`: set of `Act`. `second`: it is the event's
    second object. `above`: what is named is a folder above the class's place.
    """

    row: Rows
    cls: npt.NDArray[np.uint8]
    act: ActArray
    second: Mask
    above: Mask

    def __len__(self) -> int:
        return len(self.row)

    def where(self, mask: Mask) -> Touches:
        """Those where `mask` is true."""
        return Touches(self.row[mask], self.cls[mask], self.act[mask], self.second[mask], self.above[mask])


@functools.cache
def _table(kinds: tuple[Kind, ...]) -> Mask:
    table = np.zeros(1 << 16, np.bool_)
    table[[int(kind) for kind in kinds]] = True
    return table


def is_kind(r: Records, kinds: tuple[Kind, ...]) -> Mask:
    """Which events are of any of the kinds, shape (n,)."""
    verdict: Mask = _table(kinds)[r["kind"]]
    return verdict


def first_acts(r: Records) -> ActArray:
    """What each event does to its first object, shape (n,)."""
    kind = r["kind"]
    acts: ActArray = _FIRST_TABLE[np.minimum(kind, _KINDS - 1)]
    opens = np.flatnonzero((kind == Kind.OPEN) | (kind == Kind.HANDLE_OPEN))
    acts[opens] = _open_acts(r[opens])
    exchange = (kind == Kind.RENAME) & ((r["a0"] & RENAME_EXCHANGE) != 0)
    acts[exchange] = Act.REPLACE
    idle = (r["nr"] == NR_PIVOT_ROOT) | ((r["a0"] & MS_NOTHING_COVERED) != 0)
    acts[(kind == Kind.MOUNT) & idle] = 0
    speaks = is_kind(r, (Kind.CONNECT, Kind.SEND, Kind.BIND)) & (r["family"] == AF_UNIX)
    acts[speaks] = Act.SPEAK
    return acts


def second_acts(r: Records) -> ActArray:
    """What each event does to its second object, shape (n,); 0 where it has none."""
    kind = r["kind"]
    acts: ActArray = _SECOND_TABLE[np.minimum(kind, _KINDS - 1)]
    replaced = (kind == Kind.RENAME) & ((r["ino2"] != 0) | ((r["a0"] & RENAME_EXCHANGE) != 0))
    acts[replaced] = Act.REPLACE
    return acts


def _open_acts(r: Records) -> ActArray:
    flags = r["a0"]
    acts = np.zeros(len(r), np.uint16)
    mode = flags & O_ACCMODE
    reads, writes = mode != 1, (mode == 1) | (mode == 2)
    folder = ((flags & O_DIRECTORY) != 0) | ((r["mode"] & S_IFMT) == S_IFDIR)
    acts[reads] |= np.uint16(Act.READ)
    acts[writes] |= np.uint16(Act.OPENED)
    acts[writes & ((flags & O_TRUNC) != 0)] |= np.uint16(Act.WRITE)
    acts[folder] = Act.LIST
    acts[(flags & O_TMPFILE) == O_TMPFILE] = 0
    acts[(flags & O_PATH) != 0] = Act.PROBE
    created = (r["flags"] & Flag.CREATED) != 0
    acts[created] = (acts[created] & ~np.uint16(Act.WRITE)) | np.uint16(Act.CREATE)
    return acts
