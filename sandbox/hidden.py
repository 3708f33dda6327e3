"""Paths that shall not be there at all: whiteouts in the writable layer, put there before the start.

What the platform itself puts there later is covered for the agent instead (`masks`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from invigilator.profiles.paths import spellings
from invigilator.sandbox import files
from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.lower import LowerFolder
from invigilator.sandbox.root import Lower

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hide(layer_fd: int, lowers: Sequence[Lower], paths: Sequence[bytes], first_id: int) -> None:
    """White out each path that the lower layers have."""
    for path in (spelling for one in paths for spelling in spellings(one)):
        lower = max((one for one in lowers if _holds(one, path)), key=lambda one: len(one.mount_point))
        names = [name for name in path[len(lower.mount_point.rstrip("/")) :].split(b"/") if name]
        if not names:
            raise SandboxError(f"cannot hide {os.fsdecode(path)}: it is a file system of the sandbox")
        with LowerFolder.open(lower.folders) as top:
            _white_out(layer_fd, lower.upper, top, names, first_id)


def _holds(lower: Lower, path: bytes) -> bool:
    point = os.fsencode(lower.mount_point.rstrip("/"))
    return path == point or path.startswith(point + b"/")


def _white_out(layer_fd: int, above: str, top: LowerFolder, names: list[bytes], first_id: int) -> None:
    with top.walk_to(b"/".join(names[:-1])) as parent:
        if parent.find(names[-1]) is None:
            return
    upper = os.open(above, _FOLDER, dir_fd=layer_fd)
    for depth, name in enumerate(names[:-1]):
        with files.opened(upper), top.walk_to(b"/".join(names[:depth])) as here:
            found = here.find(name)
            assert found is not None
            upper = _same_folder(upper, name, found[1], first_id)
    with files.opened(upper):
        os.mknod(names[-1], stat.S_IFCHR, 0, dir_fd=upper)


def _same_folder(upper: int, name: bytes, looks: os.stat_result, first_id: int) -> int:
    """The folder's counterpart in the upper layer, made to look like it."""
    try:
        os.mkdir(name, 0o700, dir_fd=upper)
        os.chown(name, first_id + looks.st_uid, first_id + looks.st_gid, dir_fd=upper)
        os.chmod(name, stat.S_IMODE(looks.st_mode), dir_fd=upper)
        os.utime(name, ns=(looks.st_atime_ns, looks.st_mtime_ns), dir_fd=upper)
    except FileExistsError:
        pass
    return os.open(name, _FOLDER, dir_fd=upper)
