"""An entry of an overlay's upper layer beside what the lower ones have of its name."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Literal

from invigilator.sandbox import files
from invigilator.sandbox.lower import LowerFolder

_COMPARE_BYTES = 1 << 20


def source(lower: LowerFolder, top: LowerFolder, name: bytes, moved: bytes | None) -> LowerFolder:
    """The lower folder that an upper one is compared with: the one that it was renamed from
    (trusted.overlay.redirect: a name, or a path from the layer's root), or the one of its own name, which a
    folder made anew (trusted.overlay.opaque) took the place of."""
    if moved:
        return top.walk_to(moved) if moved.startswith(b"/") else lower.enter(moved)
    return lower.enter(name)


def has(folder: LowerFolder, path: bytes) -> bool:
    """Whether a lower folder has an entry at a path below it."""
    parent, _, name = path.rpartition(b"/")
    with folder.walk_to(parent) as inner:
        return inner.find(name) is not None


def brings(inner: LowerFolder, before: LowerFolder, path: bytes) -> Literal["added", "modified"] | None:
    """What the entry `path` of a renamed folder is to the folder that had the name before."""
    folder, _, name = path.rpartition(b"/")
    with before.walk_to(folder) as old, inner.walk_to(folder) as new:
        was, now = old.find(name), new.find(name)
        if was is None or now is None:
            return "added"
        (old_fd, old_state), (new_fd, new_state) = was, now
        same = stat.S_IFMT(old_state.st_mode) == stat.S_IFMT(new_state.st_mode)
        if same and stat.S_ISREG(old_state.st_mode):
            same = same_content(new_fd, old_fd, name, new_state, old_state)
        if same and stat.S_ISLNK(old_state.st_mode):
            same = os.readlink(name, dir_fd=new_fd) == os.readlink(name, dir_fd=old_fd)
        return None if same else "modified"


def attribute(fd: int, name: str) -> bytes | None:
    """An attribute of overlayfs's own; None where it has none."""
    with contextlib.suppress(OSError):
        return os.getxattr(fd, f"trusted.overlay.{name}")
    return None


def exists(folder: int, path: bytes) -> bool:
    """Whether the upper layer has an entry there, of any kind."""
    with contextlib.suppress(OSError):
        os.stat(path, dir_fd=folder, follow_symlinks=False)
        return True
    return False


def same_content(upper: int, lower: int, name: bytes, state: os.stat_result, before: os.stat_result) -> bool:
    """Whether two regular files of one name hold the same bytes."""
    if state.st_size != before.st_size:
        return False
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with (
        files.opened(os.open(name, flags, dir_fd=upper)) as new,
        files.opened(os.open(name, flags, dir_fd=lower)) as old,
    ):
        while True:
            part = os.read(new, _COMPARE_BYTES)
            if part != _read_exactly(old, len(part)):
                return False
            if not part:
                return True


def _read_exactly(fd: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
