"""The mount table of a sandbox, as the kernel names superblocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from invigilator.sandbox.base import Mount

_MINOR_BITS = 20
_LINE = re.compile(rb"^\d+ \d+ (\d+):(\d+) ([^ \n]+) ([^ \n]+) ", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def parse(mountinfo: bytes) -> list[Mount]:
    """Mounts of a /proc/PID/mountinfo (proc(5)), longest mount point first."""
    found = [
        Mount(int(major) << _MINOR_BITS | int(minor), _plain(root), _plain(point))
        for major, minor, root, point in _LINE.findall(mountinfo)
    ]
    return sorted(found, key=lambda mount: len(mount.mount_point), reverse=True)


def mount_table(pid: int) -> list[Mount]:
    """The mounts that a process sees."""
    return parse(Path(f"/proc/{pid}/mountinfo").read_bytes())


def without_covers(mounts: Sequence[Mount]) -> list[Mount]:
    """The mounts but for those that cover files of /proc with a device: that device's name is in /dev."""
    devices = {mount.dev for mount in mounts if mount.mount_point == b"/dev"}
    return [m for m in mounts if m.dev not in devices or not m.mount_point.startswith(b"/proc/")]


def _plain(field: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field) if b"\\" in field else field
