"""System calls of Linux that Python's `os` has no wrapper for. Errors are `OSError`."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# x86-64 and arm64 share the numbers from 424 on (the "generic" table).
_NR_OPEN_TREE, _NR_FSOPEN, _NR_FSCONFIG, _NR_FSMOUNT, _NR_OPENAT2 = 428, 430, 431, 432, 437
_NR_SETFSUID, _NR_SETFSGID, _NR_SETGROUPS = (
    (122, 123, 116) if os.uname().machine == "x86_64" else (151, 152, 159)
)

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8

_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 0, 1, 6

_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_EXT4_IOC_SHUTDOWN = 0x8004587D
_PUNCH_HOLE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE, which goes with FALLOC_FL_KEEP_SIZE."""
FICLONE = 0x40049409


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def openat2(folder: int, path: str | bytes, flags: int, resolve: int, mode: int = 0) -> int:
    """openat2(2): `path` below descriptor `folder`, walked as the RESOLVE_ flags say; a descriptor."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return _call(_NR_OPENAT2, ctypes.c_int(folder), os.fsencode(path) or b".", how, ctypes.c_size_t(len(how)))


def mount_detached(filesystem: str, source: str, options: Mapping[str, str | None]) -> int:
    """Mount a file system in no namespace at all: it goes when the descriptor returned is closed."""
    context = _call(_NR_FSOPEN, filesystem.encode(), ctypes.c_uint(_FSOPEN_CLOEXEC))
    try:
        for name, value in {"source": source, **options}.items():
            kind = _FSCONFIG_SET_FLAG if value is None else _FSCONFIG_SET_STRING
            _configure(context, kind, name.encode(), None if value is None else value.encode())
        _configure(context, _FSCONFIG_CMD_CREATE, None, None)
        flags, attributes = ctypes.c_uint(_FSMOUNT_CLOEXEC), ctypes.c_uint(MOUNT_ATTR_NODEV)
        return _call(_NR_FSMOUNT, ctypes.c_int(context), flags, attributes)
    finally:
        os.close(context)


def _configure(context: int, command: int, name: bytes | None, value: bytes | None) -> None:
    _call(_NR_FSCONFIG, ctypes.c_int(context), ctypes.c_uint(command), name, value, ctypes.c_int(0))


def attach_loop(image: int, *, tries: int = 64) -> tuple[int, str]:
    """A loop device over descriptor `image` that vanishes with its last user: (descriptor, path)."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(tries):
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            # Not LO_FLAGS_DIRECT_IO: here it made unmounting five times slower.
            head = struct.pack("II", image, 4096)
            info = struct.pack("QQQQQIIII", 0, 0, 0, 0, 0, 0, 0, 0, _LO_FLAGS_AUTOCLEAR)
            config = head + info + bytes(64 + 64 + 32 + 16) + bytes(64)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno == errno.EBUSY:  # another process took it in between
                    continue
                raise
            return device, path
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no free loop device")


def scrub(device: int, size: int) -> None:
    """Make a block device read as zeros, in no time where nothing was written; EBUSY while it is mounted
    (`blkdev_fallocate` in block/fops.c claims it first)."""
    if _libc.fallocate(ctypes.c_int(device), _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(size)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def shut_down_ext4(folder: int) -> None:
    """Make an ext4 that nobody needs any more forget its dirty pages, so that unmounting writes nothing."""
    real = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.ioctl(real, _EXT4_IOC_SHUTDOWN, struct.pack("I", 2))
    finally:
        os.close(real)


@contextmanager
def file_access_as(uid: int, gid: int) -> Iterator[None]:
    """This thread's file accesses with the rights of a user, not of root; nothing for uid 0."""
    if uid == 0:
        yield
        return
    groups = os.getgroups()
    _call(_NR_SETGROUPS, ctypes.c_int(0), None)  # of this thread only, unlike os.setgroups
    _libc.syscall(ctypes.c_long(_NR_SETFSGID), ctypes.c_uint(gid))
    _libc.syscall(ctypes.c_long(_NR_SETFSUID), ctypes.c_uint(uid))
    try:
        yield
    finally:
        _libc.syscall(ctypes.c_long(_NR_SETFSUID), ctypes.c_uint(0))
        _libc.syscall(ctypes.c_long(_NR_SETFSGID), ctypes.c_uint(0))
        words = (ctypes.c_uint * max(len(groups), 1))(*groups)
        _call(_NR_SETGROUPS, ctypes.c_int(len(groups)), words)
