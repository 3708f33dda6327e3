"""Files of a sandbox, reached from outside: every walk starts at a descriptor of its root or layer, and no
symbolic link leads out of it (openat2, RESOLVE_IN_ROOT)."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from invigilator.sandbox import kernel
from invigilator.sandbox.base import SandboxError

_INSIDE = kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_MAGICLINKS


def open_inside(root: int, path: str | bytes, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """A descriptor of `path` as the sandbox's own processes would find it. `resolve`: further RESOLVE_
    flags."""
    # openat2 refuses O_NOCTTY together with O_PATH, which opens nothing that could become a terminal.
    terminal = 0 if flags & os.O_PATH else os.O_NOCTTY
    return kernel.openat2(root, path, flags | terminal, _INSIDE | resolve, mode)


def where(root: int, path: bytes) -> tuple[bytes, bool]:
    """The path, without links, that `path` leads to, as far as there is something; whether there is."""
    found, missing = path, b""
    while True:
        try:
            fd = open_inside(root, found or b"/", os.O_PATH)
        except OSError:
            found, _, name = found.rpartition(b"/")
            missing = b"/" + name + missing
        else:
            with opened(fd):
                real = os.fsencode(Path(f"/proc/self/fd/{fd}").readlink())
            return real.rstrip(b"/") + missing, not missing


@contextlib.contextmanager
def opened(fd: int) -> Iterator[int]:
    """Close the descriptor in the end."""
    try:
        yield fd
    finally:
        os.close(fd)


def read_file(root: int, path: str | bytes, limit_bytes: int) -> bytes:
    """The content of a regular file; `SandboxError` where it is none or too large."""
    content = read_beginning(root, path, limit_bytes + 1)
    if len(content) > limit_bytes:
        raise SandboxError(f"{os.fsdecode(path)} in the sandbox is larger than {limit_bytes} bytes")
    return content


def read_beginning(root: int, path: str | bytes, limit_bytes: int) -> bytes:
    """At most `limit_bytes` of a regular file; `SandboxError` where it is none."""
    shown = os.fsdecode(path)
    try:
        with opened(open_inside(root, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
            state = os.fstat(fd)
            if not stat.S_ISREG(state.st_mode):
                raise SandboxError(f"{shown} in the sandbox is not a regular file")
            return _read_up_to(fd, limit_bytes)
    except OSError as error:
        raise SandboxError(f"cannot read {shown} in the sandbox: {error.strerror}") from error


def _read_up_to(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := os.read(fd, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_file(root: int, path: str | bytes, content: bytes, mode: int, owner: int) -> None:
    """Put a file there, with missing folders, as the sandbox's root; what was there is replaced by name, so
    that no process that holds the old file open sees or changes the new one."""
    shown = os.fsdecode(path)
    try:
        _write(root, os.fsencode(path), content, mode, owner)
    except OSError as error:
        raise SandboxError(f"cannot write {shown} in the sandbox: {error.strerror}") from error


def _write(root: int, path: bytes, content: bytes, mode: int, owner: int) -> None:
    folder, _, name = path.rstrip(b"/").rpartition(b"/")
    with opened(make_folders(root, folder, owner)) as parent:
        temporary = b".%s" % os.urandom(8).hex().encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with opened(os.open(temporary, flags, 0o600, dir_fd=parent)) as fd:
                view = memoryview(content)
                while view:
                    view = view[os.write(fd, view) :]
                os.fchown(fd, owner, owner)
                os.fchmod(fd, mode)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise


def remove_file(root: int, path: bytes) -> None:
    """Remove a name that is no folder's; nothing where it is gone. No symbolic link is followed."""
    folder, _, name = path.rpartition(b"/")
    flags, how = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, _INSIDE | kernel.RESOLVE_NO_SYMLINKS
    try:
        with opened(kernel.openat2(root, folder or b"/", flags, how, 0)) as parent:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SandboxError(f"cannot remove {os.fsdecode(path)} in the sandbox: {error.strerror}") from error


def make_folders(root: int, path: bytes, owner: int) -> int:
    """A descriptor of a folder, made with its parents where they are missing."""
    with contextlib.suppress(FileNotFoundError):
        return open_inside(root, path or b"/", os.O_RDONLY | os.O_DIRECTORY)
    walked = b""
    for name in filter(None, path.split(b"/")):
        parent, walked = walked, walked + b"/" + name
        try:
            os.close(open_inside(root, walked, os.O_PATH | os.O_DIRECTORY))
        except FileNotFoundError:
            with opened(open_inside(root, parent or b"/", os.O_RDONLY | os.O_DIRECTORY)) as fd:
                os.mkdir(name, 0o755, dir_fd=fd)
                os.chown(name, owner, owner, dir_fd=fd, follow_symlinks=False)
    return open_inside(root, path, os.O_RDONLY | os.O_DIRECTORY)
