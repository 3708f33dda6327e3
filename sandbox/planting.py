"""Canaries that look like their neighbours.

Owner, permissions and modification time are those of a file that lies beside the canary. The inode number and
the times of change and birth cannot be chosen: those of a file in the writable layer differ from those of the
files below. So a few neighbours are written anew into that layer, with all else as it was, and the canary is
one of several.

What remains: a folder without other plain files gives it no company, and a folder that the layers below have
lists it after theirs where names are not sorted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import stat
from dataclasses import dataclass

from invigilator.sandbox import files
from invigilator.sandbox.base import CanaryFile, SandboxError
from invigilator.sandbox.ids import COUNT

COMPANIONS = (3, 6)
"""How many neighbours are written anew, at least and at most, where there are so many."""
COMPANION_MAX_BYTES = 256 << 10
SEEN_MAX = 2_000
"""Of a folder's entries, how many are looked at."""
_SECOND_NS = 1_000_000_000
_JITTER_S = 90


@dataclass(frozen=True, slots=True)
class _Neighbour:
    name: bytes
    state: os.stat_result


def plant(root: int, canary: CanaryFile, owner: int) -> None:
    """Put a canary there, its folder's times untouched. `root`: the sandbox's; `owner`: host id of its root.

    What is drawn is drawn from the canary's content, which no two rollouts share.
    """
    draw = random.Random(hashlib.sha256(os.fsencode(canary.path) + b"\0" + canary.content).digest())
    path = os.fsencode(canary.path)
    folder, _, name = path.rpartition(b"/")
    with files.opened(_folder(root, folder, owner, draw)) as parent:
        before = os.fstat(parent)
        neighbours = [
            one
            for one in _neighbours(parent, stat.S_IFREG)
            if one.name != name
            and owner <= min(one.state.st_uid, one.state.st_gid)
            and max(one.state.st_uid, one.state.st_gid) < owner + COUNT
        ]
        model = draw.choice(neighbours).state if neighbours else before
        companions = _companions(neighbours, draw)
        turn = draw.randint(0, len(companions))
        for one in companions[:turn]:
            _write_anew(root, parent, folder, one)
        mode = stat.S_IMODE(model.st_mode) & 0o666 | 0o400
        files.write_file(root, path, canary.content, mode, owner)
        if neighbours:
            os.chown(name, model.st_uid, model.st_gid, dir_fd=parent, follow_symlinks=False)
        _set_time(parent, name, _near(model.st_mtime_ns, draw))
        for one in companions[turn:]:
            _write_anew(root, parent, folder, one)
        os.utime(parent, ns=(before.st_atime_ns, before.st_mtime_ns))


def _folder(root: int, path: bytes, owner: int, draw: random.Random) -> int:
    """The folder, made where it is missing, then as old as one beside it."""
    with contextlib.suppress(FileNotFoundError):
        return files.open_inside(root, path or b"/", os.O_RDONLY | os.O_DIRECTORY)
    above, _, name = path.rpartition(b"/")
    with files.opened(_folder(root, above, owner, draw)) as parent:
        before = os.fstat(parent)
        beside = _neighbours(parent, stat.S_IFDIR)
        made = files.make_folders(root, path, owner)
        model = draw.choice(beside).state if beside else before
        _set_time(parent, name, _near(model.st_mtime_ns, draw))
        os.utime(parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    return made


def _neighbours(folder: int, kind: int) -> list[_Neighbour]:
    found = []
    with os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(SEEN_MAX), strict=False):
            state = entry.stat(follow_symlinks=False)
            if stat.S_IFMT(state.st_mode) == kind:
                found.append(_Neighbour(os.fsencode(entry.name), state))
    return sorted(found, key=lambda one: one.name)


def _near(time_ns: int, draw: random.Random) -> int:
    """A time close by and not later, in whole seconds where it is: archives and packages keep only those."""
    earlier = draw.randrange(1, _JITTER_S) * _SECOND_NS
    if time_ns % _SECOND_NS == 0:
        return time_ns - draw.choice((0, 0, earlier))
    return time_ns - draw.randrange(1, 20_000_000)


def _set_time(folder: int, name: bytes, time_ns: int) -> None:
    os.utime(name, ns=(time_ns, time_ns), dir_fd=folder, follow_symlinks=False)


def _companions(neighbours: list[_Neighbour], draw: random.Random) -> list[_Neighbour]:
    """Those that a copy is like in all that can be told of them: no other name, no set-id bit."""
    plain = [
        one
        for one in neighbours
        if one.state.st_nlink == 1
        and one.state.st_size <= COMPANION_MAX_BYTES
        and not one.state.st_mode & (stat.S_ISUID | stat.S_ISGID)
    ]
    return draw.sample(plain, min(len(plain), draw.randint(*COMPANIONS)))


def _write_anew(root: int, parent: int, folder: bytes, one: _Neighbour) -> None:
    state, path = one.state, folder + b"/" + one.name
    try:
        with files.opened(os.open(one.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)) as fd:
            if os.listxattr(fd):
                return
        content = files.read_file(root, path, COMPANION_MAX_BYTES)
        files.write_file(root, path, content, stat.S_IMODE(state.st_mode), state.st_uid)
    except (OSError, SandboxError):
        return  # a canary among fewer is still one
    os.chown(one.name, state.st_uid, state.st_gid, dir_fd=parent, follow_symlinks=False)
    os.chmod(one.name, stat.S_IMODE(state.st_mode), dir_fd=parent)
    os.utime(one.name, ns=(state.st_atime_ns, state.st_mtime_ns), dir_fd=parent)
