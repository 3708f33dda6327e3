"""Paths that the policy denies, by mounts in the agent's own mount namespace.

The platform's namespace has none of them: both see the same overlays. What may not be read is covered by an
object without permissions whose owner the sandbox does not have (EACCES, also for its root); what may not be
written is a read-only mount of itself (EROFS). Folders on the way are made mount points too: else the agent
would rename one of them and put another in its place. What does not exist yet gets a placeholder, which goes
before phase verify unless something was put into it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from invigilator.profiles import protected
from invigilator.profiles.paths import spellings
from invigilator.profiles.policy import Policy
from invigilator.sandbox import files
from invigilator.sandbox.base import Mount, SandboxError
from invigilator.sandbox.kernel import (
    MOUNT_ATTR_RDONLY,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    RESOLVE_NO_SYMLINKS,
)
from invigilator.sandbox.launching import Handles, Launcher
from invigilator.sandbox.mounts import parse
from invigilator.sandbox.spec import Op, Slot, Specification

MASKS_MAX = 400
_PIN = Slot.TREE
_FIRST_FILE = Slot.TREE + 8


class Shared(Protocol):
    """What masking needs of the backend."""

    launcher: Launcher

    @property
    def stage(self) -> Path: ...


def denied(policy: Policy) -> dict[bytes, bool]:
    """Path → whether reading is denied too, for the paths that phase agent may not write or not read."""
    if policy.mode == "observe":
        return {}
    access = protected.class_access(policy, "agent")
    found = {}
    for rule in protected.rules(policy):
        read, write = access[rule.name]
        if "deny" in (read, write):
            found[rule.path] = read == "deny"
    return found


def hidden(policy: Policy) -> list[bytes]:
    """The paths that shall not be there at all; none where nothing is refused."""
    if policy.mode == "observe":
        return []
    return [rule.path for rule in protected.rules(policy) if rule.name == protected.HIDDEN]


def needed(policy: Policy) -> bool:
    """Whether the agent's commands need a mount namespace of their own."""
    return bool(denied(policy))


@dataclass(frozen=True, slots=True)
class _Target:
    """A denied path, resolved: where it is, and which object is there."""

    path: bytes
    hidden: bool
    folder: bool
    ino: tuple[int, int]


@dataclass(slots=True)
class Masks:
    """The masks of one sandbox. `owner`: host id of its root. `stranger`: an id that the sandbox does not
    have, whose covers are."""

    policy: Policy
    owner: int
    stranger: int = 0
    _in_force: dict[bytes, _Target] = field(default_factory=dict)
    _pinned: set[bytes] = field(default_factory=set)
    _placeholders: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    _made: set[bytes] = field(default_factory=set)
    _absent: dict[bytes, bytes] | None = None
    _shut: Sequence[bytes] = ()
    _applied: bool = False
    mounts: Sequence[Mount] = ()
    """The mounts of the agent's namespace, once masks are in force."""

    @property
    def made(self) -> Set[bytes]:
        """Paths of placeholders and of the folders made for them: no change of the sandbox's."""
        return self._made

    def apply(self, shared: Shared, handles: Handles) -> None:
        """Put in force what is not. The sandbox's processes, where there are any, must stand still where
        something is (`missing`)."""
        first = self._absent is None
        missing = self._missing(handles[Slot.ROOT])
        self._applied = True
        if missing:
            self._put(shared, handles, missing)
        if first:
            self._shut = [one.path for one in self._in_force.values() if one.hidden and one.folder]

    def missing(self, handles: Handles) -> bool:
        """Whether something that is denied is not in force."""
        return bool(self._missing(handles[Slot.ROOT]))

    @property
    def shut(self) -> Sequence[bytes]:
        """Folders that may not be read, from the agent's first command on: nothing below them was ever
        reached."""
        return self._shut

    def _missing(self, root: int) -> list[_Target]:
        paths = denied(self.policy)
        if self._absent is None:
            self._absent = self._not_there(root, paths)
        wanted: list[_Target] = []
        for path, covered in sorted(paths.items()):
            for spelling in spellings(path):
                if spelling in self._absent:
                    target = self._at(root, self._absent[spelling], covered)
                else:
                    target = self._resolve(root, spelling, covered, make=spelling == path)
                if target is not None and target not in wanted:
                    wanted.append(target)
        return [one for one in wanted if self._in_force.get(one.path) != one]

    def _not_there(self, root: int, paths: Collection[bytes]) -> dict[bytes, bytes]:
        """Hidden paths that stay absent, and where they would be. Not those in which something is denied: for
        its sake they are made."""
        names = [one for one in hidden(self.policy) if not any(path.startswith(one + b"/") for path in paths)]
        found = {way: files.where(root, way) for one in names for way in spellings(one)}
        return {way: real for way, (real, present) in found.items() if not present}

    def _put(self, shared: Shared, handles: Handles, missing: list[_Target]) -> None:
        if len(missing) > MASKS_MAX:
            raise SandboxError(f"more than {MASKS_MAX} denied paths: name folders instead")
        spec = self._specification(shared.stage, missing)
        made = shared.launcher.run(spec, [handles[Slot.MASKED]])
        try:
            with open(made[Slot.TABLE], "rb", closefd=False) as table:
                self.mounts = parse(table.read())
        finally:
            made.close()
        self._in_force.update((one.path, one) for one in missing)

    @property
    def applied(self) -> bool:
        """Whether they are in force: from the agent's first command until verify."""
        return self._applied

    def covers(self, path: bytes) -> bool:
        """Whether a file at `path` itself is covered: one that takes its place is not, until `apply`."""
        found = self._in_force.get(path)
        return found is not None and found.hidden and not found.folder

    def lift(self, handles: Handles) -> None:
        """Phase verify begins: take away the placeholders that nobody used."""
        root = handles[Slot.ROOT]
        for path, made in self._placeholders.items():
            folder, _, name = path.rpartition(b"/")
            with contextlib.suppress(OSError), files.opened(_folder(root, folder)) as parent:
                state = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if (state.st_dev, state.st_ino) != made:
                    continue
                if stat.S_ISDIR(state.st_mode):
                    os.rmdir(name, dir_fd=parent)
                elif state.st_size == 0:
                    os.unlink(name, dir_fd=parent)
        self._placeholders.clear()
        self._made.clear()
        self._applied = False

    def _resolve(self, root: int, path: bytes, covered: bool, *, make: bool) -> _Target | None:
        try:
            fd = files.open_inside(root, path, os.O_PATH)
        except FileNotFoundError:
            if not make:
                return None
            fd = self._place(root, path)
        except OSError as error:
            raise SandboxError(f"cannot deny {os.fsdecode(path)}: {error.strerror}") from error
        with files.opened(fd):
            state = os.fstat(fd)
            real = os.fsencode(Path(f"/proc/self/fd/{fd}").readlink())
            return _Target(real, covered, stat.S_ISDIR(state.st_mode), (state.st_dev, state.st_ino))

    def _at(self, root: int, path: bytes, covered: bool) -> _Target | None:
        """What is at a path, no link followed: one that the agent made leads where it likes."""
        try:
            fd = files.open_inside(root, path, os.O_PATH | os.O_NOFOLLOW, resolve=RESOLVE_NO_SYMLINKS)
        except OSError:
            return None
        with files.opened(fd):
            state = os.fstat(fd)
            if stat.S_ISLNK(state.st_mode):
                return None
            return _Target(path, covered, stat.S_ISDIR(state.st_mode), (state.st_dev, state.st_ino))

    def _place(self, root: int, path: bytes) -> int:
        """An empty object where there is none: a file where the name looks like a file's, else a folder."""
        folder, _, name = path.rpartition(b"/")
        self._made |= _missing(root, path)
        with files.opened(files.make_folders(root, folder, self.owner)) as parent:
            try:
                if b"." in name.lstrip(b"."):
                    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=parent))
                else:
                    os.mkdir(name, 0o755, dir_fd=parent)
            except FileExistsError as error:
                raise SandboxError(f"cannot deny {os.fsdecode(path)}: a dangling link is there") from error
            os.chown(name, self.owner, self.owner, dir_fd=parent, follow_symlinks=False)
            state = os.stat(name, dir_fd=parent, follow_symlinks=False)
            self._placeholders[path] = (state.st_dev, state.st_ino)
            return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)

    def _specification(self, stage: Path, targets: list[_Target]) -> Specification:
        spec = Specification()
        spec.add(Op.STAGE, str(stage))
        covered = [one for one in targets if one.hidden and not one.folder]
        for number, _ in enumerate(covered):
            # One each: by the file that was reached, the sensor tells which path it covers.
            spec.add(Op.FILE, str(number), 0, self.stranger, self.stranger, b"")
            spec.tree(_FIRST_FILE + number, str(number), MOUNT_ATTR_RDONLY)
        spec.add(Op.JOIN, 2)
        for one in targets:
            self._pin_folders(spec, one.path)
        for one in targets:
            if one in covered:
                spec.add(Op.PLACE, _FIRST_FILE + covered.index(one), one.path)
            elif one.hidden:
                flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
                owned = f"uid={self.stranger},gid={self.stranger}"
                spec.add(Op.MOUNT, "tmpfs", "tmpfs", one.path, flags, f"mode=000,size=4k,nr_inodes=1,{owned}")
            else:
                spec.add(Op.TREE, _PIN, one.path, MOUNT_ATTR_RDONLY, -1)
                spec.add(Op.PLACE, _PIN, one.path)
        spec.add(Op.TABLE)
        return spec

    def _pin_folders(self, spec: Specification, path: bytes) -> None:
        walked = b""
        for name in path.strip(b"/").split(b"/")[:-1]:
            walked += b"/" + name
            if walked not in self._pinned:
                spec.add(Op.TREE, _PIN, walked, 0, -1)
                spec.add(Op.PLACE, _PIN, walked)
                self._pinned.add(walked)


def _folder(root: int, path: bytes) -> int:
    return files.open_inside(root, path or b"/", os.O_RDONLY | os.O_DIRECTORY)


def _missing(root: int, path: bytes) -> set[bytes]:
    """Those of a path and the folders on its way that are not there."""
    missing = set()
    while path:
        try:
            os.close(files.open_inside(root, path, os.O_PATH))
            break
        except FileNotFoundError:
            missing.add(path)
        path = path.rpartition(b"/")[0]
    return missing
