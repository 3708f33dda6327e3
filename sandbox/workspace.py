"""The workspace goes home: what the sandbox changed in it is brought to the host's folder.

Whatever is in the sandbox's workspace is the agent's work and not to be trusted. Writing happens with the
file rights of the invoking user, below a descriptor of the folder (openat2, RESOLVE_BENEATH without symbolic
links), into a new file that takes the old one's name: no link, hard or symbolic, leads a write elsewhere.
Permissions lose setuid, setgid and sticky; owners, extended attributes, devices, pipes and sockets stay
behind.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from invigilator.sandbox import changes, files, kernel
from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.root import Lower

DEPTH_MAX = 200
_BENEATH = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_XDEV
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20
_TEMPORARY, _GATHERED = b".guard-copying-%d", b".guard-moving-%d-%d"


def check_access(folder: Path, uid: int, gid: int) -> None:
    """`SandboxError` where the invoking user could not open and write the workspace himself."""
    try:
        with kernel.file_access_as(uid, gid), files.opened(os.open(folder, _FOLDER)) as fd:
            os.scandir(fd).close()
    except OSError as error:
        raise SandboxError(
            f"the workspace {folder} cannot be read as user {uid}: {error.strerror}"
        ) from error


@dataclass(slots=True)
class CopyBack:
    """One way home. `planted`: files of the upper layer that were there before any command, and do not come
    along unchanged. `skipped`: paths below the workspace that stayed behind, with the reason."""

    root_fd: int
    point: bytes
    target: int
    uid: int
    gid: int
    planted: Mapping[bytes, changes.State]
    skipped: list[str] = field(default_factory=list)
    gathered: dict[bytes, bytes] = field(default_factory=dict)
    depth: int = 0

    def folder(self, upper: int, path: bytes) -> None:
        """Bring home the changes of one upper folder; `path` is below the workspace, b"" itself."""
        for name, state in _entries(upper):
            here = path + b"/" + name if path else name
            if self._as_planted(here, state):
                continue
            try:
                self._entry(upper, name, state, path, here)
            except OSError as error:
                self._skip(here, error.strerror or str(error))

    def _as_planted(self, here: bytes, state: os.stat_result) -> bool:
        known = self.planted.get(self.point.rstrip(b"/") + b"/" + here)
        return not stat.S_ISDIR(state.st_mode) and known == changes.state_of(state)

    def _entry(self, upper: int, name: bytes, state: os.stat_result, path: bytes, here: bytes) -> None:
        if stat.S_ISCHR(state.st_mode) and state.st_rdev == 0:
            self._remove(path, name)
        elif stat.S_ISDIR(state.st_mode):
            self._take_folder(upper, name, state, path, here)
        elif stat.S_ISLNK(state.st_mode):
            self._take_link(os.readlink(name, dir_fd=upper), path, name)
        elif stat.S_ISREG(state.st_mode):
            self._take_file(upper, name, state, path)
        else:
            self._skip(here, "neither file, folder nor symbolic link")

    def _take_folder(self, upper: int, name: bytes, state: os.stat_result, path: bytes, here: bytes) -> None:
        if self.depth >= DEPTH_MAX:
            self._skip(here, f"deeper than {DEPTH_MAX} folders")
            return
        with files.opened(os.open(name, _FOLDER, dir_fd=upper)) as inner:
            if here in self.gathered:
                self._remove(path, name)
                self._set_down(self.gathered.pop(here), path, name)
            else:
                if _has(inner, "opaque"):
                    self._remove(path, name)
                self._make_folder(path, name)
                self.depth += 1
                self.folder(inner, here)
                self.depth -= 1
        with self._as_user(), files.opened(self._parent(here)) as fd:
            os.fchmod(fd, stat.S_IMODE(state.st_mode) & 0o777)

    def gather(self, upper: int, path: bytes) -> None:
        """Take renamed folders first, under other names: most of their content lies in the host's folder
        itself, under the old name, which the changes are about to alter."""
        for name, state in _entries(upper):
            if not stat.S_ISDIR(state.st_mode) or self.depth >= DEPTH_MAX:
                continue
            here = path + b"/" + name if path else name
            self.depth += 1
            try:
                with files.opened(os.open(name, _FOLDER, dir_fd=upper)) as inner:
                    if _has(inner, "redirect"):
                        self._pick_up(here)
                    else:
                        self.gather(inner, here)
            except OSError as error:  # somebody changes it under our hands
                self._skip(here, error.strerror or str(error))
            finally:
                self.depth -= 1

    def forget(self) -> None:
        """Remove what was gathered and found no place."""
        for name in self.gathered.values():
            self._remove(b"", name)

    def _pick_up(self, here: bytes) -> None:
        name = _GATHERED % (os.getpid(), len(self.gathered))
        self._remove(b"", name)
        self.gathered[here] = name
        self._make_folder(b"", name)
        with files.opened(self._merged(here)) as merged:
            self.folder(merged, name)

    def _set_down(self, temporary: bytes, path: bytes, name: bytes) -> None:
        with self._as_user(), files.opened(self._parent(path)) as parent:
            os.rename(temporary, name, src_dir_fd=self.target, dst_dir_fd=parent)

    def _merged(self, here: bytes) -> int:
        """A folder as the sandbox saw it: a renamed one has most of its content in the lower layer."""
        inside = self.point + b"/" + here
        resolve = kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_SYMLINKS
        return kernel.openat2(self.root_fd, inside, os.O_RDONLY | os.O_DIRECTORY, resolve)

    def _make_folder(self, path: bytes, name: bytes) -> None:
        with self._as_user(), files.opened(self._parent(path)) as parent:
            with contextlib.suppress(FileNotFoundError):
                state = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISDIR(state.st_mode):
                    return
                os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o700, dir_fd=parent)

    def _take_link(self, to: bytes, path: bytes, name: bytes) -> None:
        self._clear(path, name)
        with self._as_user(), files.opened(self._parent(path)) as parent:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
            os.symlink(to, name, dir_fd=parent)

    def _take_file(self, upper: int, name: bytes, state: os.stat_result, path: bytes) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._clear(path, name)
        with (
            files.opened(os.open(name, flags, dir_fd=upper)) as source,
            self._as_user(),
            files.opened(self._parent(path)) as parent,
        ):
            temporary = _TEMPORARY % os.getpid()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with files.opened(os.open(temporary, made, 0o600, dir_fd=parent)) as copy:
                    _copy_content(source, copy, state.st_size)
                    os.fchmod(copy, stat.S_IMODE(state.st_mode) & 0o777)
                    os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise

    def _clear(self, path: bytes, name: bytes) -> None:
        """A folder makes way for what is no folder."""
        with self._as_user(), files.opened(self._parent(path)) as parent:
            try:
                state = os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return
        if stat.S_ISDIR(state.st_mode):
            self._remove(path, name)

    def _remove(self, path: bytes, name: bytes) -> None:
        with self._as_user(), files.opened(self._parent(path)) as parent:
            _remove_tree(parent, name)

    def _parent(self, path: bytes) -> int:
        return kernel.openat2(self.target, path or b".", os.O_RDONLY | os.O_DIRECTORY, _BENEATH)

    def _as_user(self) -> contextlib.AbstractContextManager[None]:
        return kernel.file_access_as(self.uid, self.gid)

    def _skip(self, path: bytes, why: str) -> None:
        self.skipped.append(f"{path.decode('utf-8', 'backslashreplace')}: {why}")


def copy_back(
    layer_fd: int,
    root_fd: int,
    workspace: Lower,
    uid: int,
    gid: int,
    planted: Mapping[bytes, changes.State],
) -> Sequence[str]:
    """Bring the workspace's changes home; what stayed behind, and why. `planted`: see `CopyBack`."""
    try:
        target = os.open(workspace.folders[0], _FOLDER)
    except OSError as error:
        raise SandboxError(f"the workspace {workspace.folders[0]} is gone: {error.strerror}") from error
    with files.opened(target), files.opened(os.open("workspace/upper", _FOLDER, dir_fd=layer_fd)) as upper:
        point = os.fsencode(workspace.mount_point)
        journey = CopyBack(root_fd, point, target, uid, gid, planted)
        try:
            journey.gather(upper, b"")
            journey.folder(upper, b"")
        finally:
            journey.forget()
    return journey.skipped


def _entries(folder: int) -> list[tuple[bytes, os.stat_result]]:
    """What a folder holds, sorted by name; without what goes away meanwhile."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                found.append((os.fsencode(entry.name), entry.stat(follow_symlinks=False)))
    return sorted(found)


def _has(fd: int, name: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(os.getxattr(fd, f"trusted.overlay.{name}"))
    return False


def _copy_content(source: int, copy: int, size: int) -> None:
    """Content with its holes, so that a huge sparse file stays sparse."""
    offset = 0
    os.ftruncate(copy, size)
    while offset < size:
        try:
            start = os.lseek(source, offset, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole is left
            return
        offset = os.lseek(source, start, os.SEEK_HOLE)
        for part in _parts(source, start, offset):
            os.pwrite(copy, part, start)
            start += len(part)


def _parts(source: int, start: int, end: int) -> Iterator[bytes]:
    while start < end and (part := os.pread(source, min(_CHUNK_BYTES, end - start), start)):
        yield part
        start += len(part)


def _remove_tree(parent: int, name: bytes) -> None:
    try:
        state = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(state.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    with files.opened(kernel.openat2(parent, name, os.O_RDONLY | os.O_DIRECTORY, _BENEATH)) as fd:
        with os.scandir(fd) as entries:
            names = [os.fsencode(entry.name) for entry in entries]
        for inner in names:
            _remove_tree(fd, inner)
    os.rmdir(name, dir_fd=parent)
