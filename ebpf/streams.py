"""Recorded streams as the kernel's programs know them: by device and inode."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from pathlib import Path

TTY_DEV = 5 << 20
"""/dev/tty (5:0), through which a process reaches its own terminal by another name."""
TIOCGPTN = 0x80045430


def stream_objects(fd: int) -> list[tuple[int, int]]:
    """(device, inode) of a stream as the kernel sees it; of a terminal, those of its far end and /dev/tty."""
    status = os.fstat(fd)
    if stat.S_ISCHR(status.st_mode):
        try:
            number = struct.unpack("i", fcntl.ioctl(fd, TIOCGPTN, b"\0" * 4))[0]
            status = Path(f"/dev/pts/{number}").stat()
        except OSError:
            pass
        return [(kernel_dev(status.st_dev), status.st_ino), (0, TTY_DEV)]
    return [(kernel_dev(status.st_dev), status.st_ino)]


def kernel_dev(dev: int) -> int:
    """stat's device number as the kernel's own `dev_t` (major << 20 | minor)."""
    return os.major(dev) << 20 | os.minor(dev)
