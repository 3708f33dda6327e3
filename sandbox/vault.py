"""Hidden paths that were not there when the agent began, and that the platform may fill while it runs.

A folder that the agent can name before the platform uses it, it can hold: by a descriptor, as its working
folder, by a name of its own. So what the platform puts there never lies in a folder that the agent had the
chance to hold. It has a folder of its own, in the part of the root's overlay that /dev lies over in every
view, and the platform's view alone has that mounted at the hidden path. In the agent's view the path is
covered (`masks`); what it may hold is the empty folder underneath, or its own.

A hidden path that was there from the start is covered from the start. It is made a mount of itself in the
platform's view, for removing it there would take the agent's cover away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from invigilator.profiles.paths import spellings
from invigilator.profiles.policy import Policy
from invigilator.sandbox import files, masks
from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.kernel import MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID
from invigilator.sandbox.launching import Handles, LauncherError
from invigilator.sandbox.spec import Op, Slot, Specification

KEPT_UNDER = b"/dev/.kept"
"""Where the root's overlay holds what is mounted at hidden paths."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_MAX_BYTES = 200


class RoomError(SandboxError):
    """A hidden path cannot be secured: the sandbox's disk is full."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A hidden path. `real`: where it is, by the links that were on its way before the agent began.
    `present`: whether it was there then."""

    path: bytes
    real: bytes
    present: bool


@dataclass(slots=True)
class Vault:
    """The hidden paths of one sandbox. `owner`: host id of its root user."""

    policy: Policy
    owner: int
    _places: list[_Place] | None = None
    _secured: dict[bytes, tuple[int, int] | None] = field(default_factory=dict)
    made: set[bytes] = field(default_factory=set)
    """Folders made to be mounted upon: no change of the sandbox's."""

    def begin(self, root: int) -> None:
        """The agent's first command is about to start: what is there now is covered, and it never held it."""
        if self._places is None:
            ways = [way for path in masks.hidden(self.policy) for way in spellings(path)]
            found = [_Place(way, *files.where(root, way)) for way in ways]
            self._places = list({one.real: one for one in reversed(found)}.values())

    def concerns(self, root: int, path: bytes) -> bool:
        """Whether a file at `path` would lie below a hidden path that is not yet secured."""
        if not (pending := self.pending(())):
            return False
        ways = (path, files.where(root, path)[0])
        return any(_is_below(way, at) for way in ways for one in pending for at in (one.path, one.real))

    def pending(self, covered: Iterable[bytes]) -> list[_Place]:
        """The hidden paths to secure. `covered`: what the agent's view covers with all below it."""
        shut = [folder.rstrip(b"/") + b"/" for folder in covered]
        return [
            one
            for one in self._places or ()
            if one.path not in self._secured and not any(one.real.startswith(folder) for folder in shut)
        ]

    def secure(self, shared: masks.Shared, handles: Handles, places: Sequence[_Place]) -> None:
        """Make those that are pending the platform's alone; no process of the sandbox runs meanwhile."""
        root = handles[Slot.ROOT]
        for one in places:
            try:
                self._make_way(root, one.real)
            except OSError as error:
                raise RoomError(f"cannot hide {os.fsdecode(one.path)}: {error.strerror}") from error
        self._mount(shared, handles, places)
        for one in places:
            self._secured[one.path] = _identity(root, one.real)

    def check(self, root: int) -> None:
        """`SandboxError` where a secured path leads elsewhere than before the agent began."""
        for path, known in self._secured.items():
            if known is None or _identity(root, path) != known:
                raise SandboxError(
                    f"the hidden path {os.fsdecode(path)} leads elsewhere than before the agent began: a link"
                    " on its way was replaced"
                )

    def withdraw(self, root: int, under: bytes) -> None:
        """The sandbox's processes are gone: take away the folders that were made below one, where they are
        empty, and with them what is mounted there."""
        made = [path for path in self.made if _is_below(path, under)]
        for path in sorted(made, key=len, reverse=True):
            folder, _, name = path.rpartition(b"/")
            with contextlib.suppress(OSError), files.opened(_open(root, folder)) as parent:
                os.rmdir(name, dir_fd=parent)

    def _make_way(self, root: int, path: bytes) -> None:
        """Folders at `path` and on its way. What the agent put there that is none is put aside."""
        parent, walked = _open(root, b"/"), b""
        try:
            for name in path.strip(b"/").split(b"/"):
                walked += b"/" + name
                if not _is_folder(parent, name):
                    with contextlib.suppress(FileNotFoundError):
                        aside = b"%s.%s" % (name[:_NAME_MAX_BYTES], os.urandom(8).hex().encode())
                        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
                    os.mkdir(name, 0o755, dir_fd=parent)
                    os.chown(name, self.owner, self.owner, dir_fd=parent, follow_symlinks=False)
                    self.made.add(walked)
                inner = os.open(name, _FOLDER, dir_fd=parent)
                os.close(parent)
                parent = inner
        finally:
            os.close(parent)

    def _mount(self, shared: masks.Shared, handles: Handles, places: Sequence[_Place]) -> None:
        # For a moment, over a folder that every sandbox has and that nothing of the agent's can fill.
        above = b"/sys"
        kept = above + KEPT_UNDER
        spec = Specification()
        spec.add(Op.JOIN, 2)
        spec.add(Op.TREE, Slot.TREE, "/", 0, -1)
        spec.add(Op.PLACE, Slot.TREE, above)
        spec.add(Op.MKDIR, kept, 0o755, self.owner, self.owner)
        for number, one in enumerate(places, len(self._secured)):
            source = one.real
            if not one.present:
                source = b"%s/%d" % (kept, number)
                spec.add(Op.MKDIR, source, 0o755, self.owner, self.owner)
            spec.add(Op.TREE, Slot.TREE, source, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID, -1)
            spec.add(Op.PLACE, Slot.TREE, one.real)
        spec.add(Op.DETACH, above)
        try:
            shared.launcher.run(spec, [handles[Slot.MOUNT]]).close()
        except LauncherError as error:
            if error.errno == errno.ENOSPC:
                raise RoomError(f"cannot hide paths: {os.strerror(error.errno)}") from error
            raise


def is_kept(path: bytes) -> bool:
    """Whether a path of the writable layer is of the vault: the sandbox has another /dev."""
    return _is_below(path, KEPT_UNDER)


def _open(root: int, path: bytes) -> int:
    return files.open_inside(root, path or b"/", os.O_RDONLY | os.O_DIRECTORY)


def _is_folder(parent: int, name: bytes) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    return False


def _identity(root: int, path: bytes) -> tuple[int, int] | None:
    with contextlib.suppress(OSError), files.opened(files.open_inside(root, path, os.O_PATH)) as fd:
        state = os.fstat(fd)
        return (state.st_dev, state.st_ino)
    return None


def _is_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")
