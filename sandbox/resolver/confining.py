"""The system calls of the process that parses strangers' bytes: what it needs to speak DNS, and no others.

Whoever takes the process over has its sockets and no more: it executes nothing, maps no code, begins no
process, opens files for reading alone, and makes sockets of the Internet alone, on which it cannot listen.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

ALWAYS = (
    # Memory, time, signals, its end.
    "brk", "madvise", "mremap", "munmap", "clock_getres", "clock_gettime", "clock_nanosleep", "getrandom",
    "gettimeofday", "futex", "restart_syscall", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
    "sched_yield", "sigaltstack", "exit", "exit_group",
    # Who it is.
    "getegid", "geteuid", "getgid", "getpid", "gettid", "getuid", "uname",
    # Files that are open, and names: /etc/resolv.conf may be another by now, and Python looks for modules.
    "close", "fcntl", "fstat", "getcwd", "getdents64", "lseek", "newfstatat", "pread64", "read", "readlink",
    "readlinkat", "stat", "lstat", "statx", "write",
    # Sockets.
    "accept4", "connect", "epoll_ctl", "epoll_pwait", "epoll_wait", "getpeername", "getsockname",
    "getsockopt", "poll", "ppoll", "recvfrom", "recvmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
)  # fmt: skip
FAMILIES = (socket.AF_INET, socket.AF_INET6)
FIONBIO, FIOCLEX = 0x5421, 0x5451
"""asm-generic/ioctls.h"""
_PROT_EXEC = 0x4
_O_TMPFILE = 0o20000000
"""asm-generic/fcntl.h, without O_DIRECTORY, which reading may ask for."""
_WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _O_TMPFILE
_INT_MASK = 0xFFFFFFFF


def confine() -> None:
    """Refuse every other system call of this process from now on, with EPERM. ImportError where libseccomp's
    module is missing, OSError where the kernel has no filters: the process must not go on then."""
    import seccomp

    made = seccomp.SyscallFilter(defaction=seccomp.ERRNO(errno.EPERM))
    made.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    # Of all threads of the process, and it has one.
    made.set_attr(seccomp.Attr.CTL_TSYNC, 1)
    for name in ALWAYS:
        _allow(seccomp, made, name)
    for command in (FIONBIO, FIOCLEX):
        _allow(seccomp, made, "ioctl", (1, _INT_MASK, command))
    for family in FAMILIES:
        _allow(seccomp, made, "socket", (0, _INT_MASK, family))
    _allow(seccomp, made, "openat", (2, _WRITING, 0))
    for name in ("mmap", "mprotect"):
        _allow(seccomp, made, name, (2, _PROT_EXEC, 0))
    made.load()


def _allow(module: Any, made: Any, name: str, masked: tuple[int, int, int] | None = None) -> None:
    """Let `name` pass; `masked` (argument, mask, value): where argument & mask == value."""
    if module.resolve_syscall(module.Arch(), name) < 0:
        return  # this machine has no such call (stat, lstat and readlink of aarch64)
    conditions = [module.Arg(masked[0], module.MASKED_EQ, *masked[1:])] if masked else []
    made.add_rule(module.ALLOW, name, *conditions)
