"""What the writable layer changed: a walk of the overlays' upper folders, beside their lower ones.

A file that was copied up and ends with the content that it had is no change; with other permissions or
another owner it is one of metadata. Names and depths are the agent's, so all walks go by descriptors.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from invigilator.sandbox import comparing, files
from invigilator.sandbox.base import Change
from invigilator.sandbox.lower import LowerFolder, files_below, is_whiteout
from invigilator.sandbox.root import Lower

DEPTH_MAX = 200
"""Folders deeper than this are told as one change: each level holds descriptors."""
REMOVED_MAX = 10_000
"""Entries of one removed or renamed folder that are told one by one."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

State = tuple[int, int, int, int, int]
"""Mode, owner, group, size (0 for folders), and modification time in ns (0 for folders)."""


def state_of(state: os.stat_result) -> State:
    """What a baseline remembers of an entry."""
    folder = stat.S_ISDIR(state.st_mode)
    times = (0, 0) if folder else (state.st_size, state.st_mtime_ns)
    return (state.st_mode, state.st_uid, state.st_gid, *times)


@dataclass(slots=True)
class Walk:
    """One comparison. `first_id` maps owners of the upper layers to those of the lower ones; `owner`: (uid,
    gid) of the lower files that the sandbox sees as its root's, None where all ids are mapped."""

    root_fd: int
    first_id: int
    baseline: Mapping[bytes, State]
    owner: tuple[int, int] | None = None
    depth: int = 0
    unreadable: list[bytes] = field(default_factory=list)

    def folder(self, upper: int, lower: LowerFolder, top: LowerFolder, path: bytes) -> Iterator[Change]:
        """Changes of all that is in a folder. `top`: the lower root, for renamed folders."""
        with os.scandir(upper) as entries:
            names = sorted(os.fsencode(entry.name) for entry in entries)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield from self.entry(upper, name, lower, top, path + b"/" + name)

    def entry(
        self, upper: int, name: bytes, lower: LowerFolder, top: LowerFolder, path: bytes
    ) -> Iterator[Change]:
        """Changes of one entry of an upper folder, and of what is in it."""
        state = os.stat(name, dir_fd=upper, follow_symlinks=False)
        before = lower.find(name)
        if is_whiteout(state):
            if self.baseline.get(path) != state_of(state) and before is not None:
                yield from self.removed(lower, name, path, before[1])
            return
        if self.baseline.get(path) != state_of(state):
            yield from self._itself(upper, name, state, before, path)
        if stat.S_ISDIR(state.st_mode):
            yield from self._inside(upper, name, lower, top, path)
        elif before is not None and stat.S_ISDIR(before[1].st_mode):
            yield from self.removed(lower, name, path, before[1], itself=False)

    def removed(
        self, lower: LowerFolder, name: bytes, path: bytes, state: os.stat_result, *, itself: bool = True
    ) -> Iterator[Change]:
        """The removal of a lower entry with all that was in it."""
        if itself:
            yield Change(path, "removed", 0, state.st_mode, state.st_ino)
        if stat.S_ISDIR(state.st_mode):
            with lower.enter(name) as inner:
                for below, gone in files_below(inner, path, REMOVED_MAX):
                    yield Change(below, "removed", 0, gone.st_mode, gone.st_ino)

    def _itself(
        self,
        upper: int,
        name: bytes,
        state: os.stat_result,
        before: tuple[int, os.stat_result] | None,
        path: bytes,
    ) -> Iterator[Change]:
        kind: Literal["added", "modified", "metadata"] | None = "added"
        if before is not None:
            kind = self._compare(upper, name, state, *before)
        if kind:
            yield Change(path, kind, state.st_size, state.st_mode, self._inode(path, state))

    def _inside(
        self, upper: int, name: bytes, lower: LowerFolder, top: LowerFolder, path: bytes
    ) -> Iterator[Change]:
        if self.depth >= DEPTH_MAX:
            self.unreadable.append(path)
            return
        self.depth += 1
        try:
            with files.opened(os.open(name, _FOLDER, dir_fd=upper)) as fd:
                opaque = comparing.attribute(fd, "opaque") == b"y"
                moved = comparing.attribute(fd, "redirect")
                with comparing.source(lower, top, name, moved) as inner, lower.enter(name) as before:
                    if moved:
                        yield from self._brought(inner, before, fd, path)
                    yield from self.folder(fd, before if before.fds else inner, top, path)
                    if opaque or moved:
                        yield from self._replaced(fd, inner if moved else None, before, path)
        finally:
            self.depth -= 1

    def _brought(self, inner: LowerFolder, before: LowerFolder, upper: int, path: bytes) -> Iterator[Change]:
        """A renamed lower folder brings its unchanged content along, without a trace in the upper layer."""
        for below, state in files_below(inner, path, REMOVED_MAX):
            inside = below[len(path) + 1 :]
            if not comparing.exists(upper, inside) and (kind := comparing.brings(inner, before, inside)):
                yield Change(below, kind, state.st_size, state.st_mode, self._inode(below, state))

    def _replaced(
        self, upper: int, inner: LowerFolder | None, before: LowerFolder, path: bytes
    ) -> Iterator[Change]:
        """A new folder of an old folder's name: what of the old one is neither in it nor brought along."""
        for below, state in files_below(before, path, REMOVED_MAX):
            inside = below[len(path) + 1 :]
            if not comparing.exists(upper, inside) and not (inner and comparing.has(inner, inside)):
                yield Change(below, "removed", 0, state.st_mode, state.st_ino)

    def _compare(
        self, upper: int, name: bytes, state: os.stat_result, fd: int, before: os.stat_result
    ) -> Literal["modified", "metadata"] | None:
        if stat.S_IFMT(state.st_mode) != stat.S_IFMT(before.st_mode):
            return "modified"
        if stat.S_ISLNK(state.st_mode) and os.readlink(name, dir_fd=upper) != os.readlink(name, dir_fd=fd):
            return "modified"
        if stat.S_ISREG(state.st_mode) and not comparing.same_content(upper, fd, name, state, before):
            return "modified"
        return None if self._same_rights(state, before) else "metadata"

    def _same_rights(self, state: os.stat_result, before: os.stat_result) -> bool:
        if stat.S_ISLNK(state.st_mode):
            return True
        if state.st_mode != before.st_mode:
            return False
        uid, gid = before.st_uid, before.st_gid
        if self.owner is not None:
            uid = 0 if uid == self.owner[0] else -self.first_id + state.st_uid
            gid = 0 if gid == self.owner[1] else -self.first_id + state.st_gid
        return (state.st_uid, state.st_gid) == (self.first_id + uid, self.first_id + gid)

    def _inode(self, path: bytes, state: os.stat_result) -> int:
        """Inode number as the kernel's record has it: the overlay's, not the layer's."""
        with contextlib.suppress(OSError), files.opened(files.open_inside(self.root_fd, path, _LOOK)) as fd:
            return os.fstat(fd).st_ino
        return state.st_ino


_LOOK = os.O_PATH | os.O_NOFOLLOW


def differences(
    layer_fd: int,
    walk: Walk,
    lowers: Sequence[Lower],
    under: Sequence[str],
    workspace_owner: tuple[int, int] | None,
) -> Iterator[Change]:
    """Changes at or below any of the absolute paths `under`, each once, by path within each overlay."""
    for lower in lowers:
        walk.owner = workspace_owner if lower.part == "workspace" else None
        point = os.fsencode(lower.mount_point.rstrip("/"))
        with LowerFolder.open(lower.folders) as top:
            for start in _starts(point, under, lowers):
                yield from _from(layer_fd, walk, lower.upper, top, point, start)


def _starts(point: bytes, under: Sequence[str], lowers: Sequence[Lower]) -> list[bytes]:
    """Where to begin in the overlay mounted at `point`: paths relative to it, none below another."""
    wanted = sorted({b"/" + os.fsencode(path).strip(b"/") for path in under})
    starts: list[bytes] = []
    for path in wanted:
        if _is_below(point or b"/", path):
            starts.append(b"")
        elif _is_below(path, point or b"/") and _owner_of(path, lowers) == (point or b"/"):
            starts.append(path[len(point) :].strip(b"/"))
    return [one for one in starts if not any(_is_below(one, other) and one != other for other in starts)]


def _owner_of(path: bytes, lowers: Sequence[Lower]) -> bytes:
    points = [os.fsencode(lower.mount_point) for lower in lowers]
    return max((point for point in points if _is_below(path, point)), key=len)


def _is_below(path: bytes, folder: bytes) -> bool:
    folder = folder.rstrip(b"/")
    return path == folder or path.startswith(folder + b"/") or (not folder)


def _from(
    layer_fd: int, walk: Walk, above: str, top: LowerFolder, point: bytes, start: bytes
) -> Iterator[Change]:
    """Follow `start` down the upper layer; what is on the way may be missing, new, or whited out."""
    upper = os.open(above, _FOLDER, dir_fd=layer_fd)
    lower = top.walk_to(b"")
    path = point
    try:
        names = [name for name in start.split(b"/") if name]
        for number, name in enumerate(names):
            try:
                state = os.stat(name, dir_fd=upper, follow_symlinks=False)
            except FileNotFoundError:
                return
            path += b"/" + name
            last = number == len(names) - 1
            if last or not stat.S_ISDIR(state.st_mode):
                yield from _told(walk, upper, name, lower, top, path, names[number + 1 :])
                return
            inner = os.open(name, _FOLDER, dir_fd=upper)
            below = comparing.source(lower, top, name, comparing.attribute(inner, "redirect"))
            os.close(upper)
            lower.close()
            upper, lower = inner, below
        yield from walk.folder(upper, lower, top, path)
    finally:
        os.close(upper)
        lower.close()


def _told(
    walk: Walk, upper: int, name: bytes, lower: LowerFolder, top: LowerFolder, path: bytes, rest: list[bytes]
) -> Iterator[Change]:
    if not rest:
        yield from walk.entry(upper, name, lower, top, path)
        return
    with lower.walk_to(b"/".join([name, *rest[:-1]])) as parent:  # a folder on the way is gone, and all below
        before = parent.find(rest[-1])
        if before is not None:
            yield from walk.removed(parent, rest[-1], path + b"/" + b"/".join(rest), before[1])


def snapshot(layer_fd: int, lowers: Sequence[Lower]) -> dict[bytes, State]:
    """The upper layers as the launcher left them: what is in there before any command ran."""
    found: dict[bytes, State] = {}
    for lower in lowers:
        point = os.fsencode(lower.mount_point.rstrip("/"))
        upper = os.fsencode(lower.upper)
        for path, state in _everything(layer_fd, upper):
            found[point + path[len(upper) :]] = state_of(state)
    return found


def _everything(folder: int, path: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    with files.opened(os.open(path, _FOLDER, dir_fd=folder)) as fd, os.scandir(fd) as entries:
        found = [(os.fsencode(entry.name), entry.stat(follow_symlinks=False)) for entry in entries]
    for name, state in found:
        here = path + b"/" + name
        yield here, state
        if stat.S_ISDIR(state.st_mode):
            yield from _everything(folder, here)
