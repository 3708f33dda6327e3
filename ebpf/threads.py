"""Threads by descriptor: what the kernel's task storage is keyed by."""

from __future__ import annotations

import errno
import os

PIDFD_THREAD = os.O_EXCL
"""Of pidfd_open(2), since Linux 6.9: a descriptor of any thread."""
_GONE = (errno.ESRCH, errno.ENOENT)
"""ENOENT: before Linux 6.9 a descriptor of a thread that is not its process's first."""


def thread_fd(tid: int) -> int | None:
    """A descriptor of a thread; None where it is gone, or this kernel has none of such a thread."""
    for flags in (PIDFD_THREAD, 0):
        try:
            return os.pidfd_open(tid, flags)
        except OSError as error:
            if error.errno in _GONE:
                return None
            if error.errno != errno.EINVAL:
                raise
    return None
