"""Folders of an overlay's lower layers, walked by descriptors so that no symbolic link is followed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_whiteout(state: os.stat_result) -> bool:
    """Whether an entry of a layer says that there is nothing (Documentation/filesystems/overlayfs.rst)."""
    return stat.S_ISCHR(state.st_mode) and state.st_rdev == 0


class LowerFolder:
    """One folder as the lower layers show it; `fds`: the folder in each layer that has it, topmost first."""

    def __init__(self, fds: Sequence[int]) -> None:
        self.fds = list(fds)

    @classmethod
    def open(cls, folders: Sequence[Path]) -> LowerFolder:
        """The root of the layers."""
        made = cls([])
        try:
            for folder in folders:
                made.fds.append(os.open(folder, _FOLDER))
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        """Close the descriptors."""
        while self.fds:
            os.close(self.fds.pop())

    def find(self, name: bytes) -> tuple[int, os.stat_result] | None:
        """(descriptor of the layer's folder, state) of an entry; None where there is none."""
        for fd in self.fds:
            with contextlib.suppress(OSError):
                state = os.stat(name, dir_fd=fd, follow_symlinks=False)
                return None if is_whiteout(state) else (fd, state)
        return None

    def enter(self, name: bytes) -> LowerFolder:
        """The folder `name`, with no layers where it is no folder."""
        inner: list[int] = []
        for fd in self.fds:
            try:
                state = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not stat.S_ISDIR(state.st_mode):
                    break
                inner.append(os.open(name, _FOLDER, dir_fd=fd))
            except FileNotFoundError:
                continue
            except OSError:
                break
            with contextlib.suppress(OSError):
                if os.getxattr(inner[-1], "trusted.overlay.opaque") == b"y":
                    break
        return LowerFolder(inner)

    def walk_to(self, path: bytes) -> LowerFolder:
        """The folder at a path below this one."""
        here = LowerFolder([os.dup(fd) for fd in self.fds])
        for name in filter(None, path.split(b"/")):
            inner = here.enter(name)
            here.close()
            here = inner
        return here

    def names(self) -> list[bytes]:
        """Names of the entries, sorted."""
        seen: dict[bytes, bool] = {}
        for fd in self.fds:
            with os.scandir(fd) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    seen.setdefault(name, is_whiteout(entry.stat(follow_symlinks=False)))
        return sorted(name for name, gone in seen.items() if not gone)

    def __enter__(self) -> LowerFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def files_below(folder: LowerFolder, path: bytes, left: int) -> Iterator[tuple[bytes, os.stat_result]]:
    """Everything in a lower folder, at most `left` entries: (path, state)."""
    stack = [path]
    while stack and left > 0:
        here = stack.pop()
        with folder.walk_to(here[len(path) :]) as inner:
            for name in inner.names():
                found = inner.find(name)
                if found is None:
                    continue
                left -= 1
                yield here + b"/" + name, found[1]
                if stat.S_ISDIR(found[1].st_mode):
                    stack.append(here + b"/" + name)
                if left <= 0:
                    return
