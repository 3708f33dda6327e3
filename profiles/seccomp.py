"""Policy → seccomp filter: a BPF program (array of struct sock_filter) that answers with errno, never a kill.

seccomp(2) sees a call's number, its ABI and its scalar arguments, and nothing that a pointer leads to. What a
policy asks for and a filter cannot do is listed in `Filter.unexpressed`.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from invigilator.profiles.policy import CallRule, PhaseName, Policy, Syscalls
from invigilator.profiles.seccomp_writer import FOREIGN, Refusal, Writer, condition, known, number

__all__ = [
    "ALLOW_ALL",
    "EXTENT_IOCTLS",
    "IO_URING",
    "Filter",
    "Refusal",
    "build",
    "compile",
    "condition",
    "known",
    "number",
    "raw_of",
    "syscalls_of",
]

CLONE_NEWUSER = 0x10000000
"""linux/sched.h"""
TIOCSTI = 0x5412
"""asm-generic/ioctls.h"""
EXTENT_IOCTLS = {
    "FICLONE": 0x40049409,
    "FICLONERANGE": 0x4020940D,
    "XFS_IOC_SWAPEXT": 0xC0C0586D,
    "XFS_IOC_EXCHANGE_RANGE": 0x40285881,
    "FIDEDUPERANGE": 0xC0189436,
    "XFS_IOC_COMMIT_RANGE": 0x40585883,
    "XFS_IOC_SWAPEXT_32": 0xC0A4586D,
    "EXT4_IOC_MOVE_EXT": 0xC028660F,
    "F2FS_IOC_MOVE_RANGE": 0xC020F509,
    "OCFS2_IOC_REFLINK": 0x40186F04,
}
"""Calls that give a file another file's data blocks (linux/fs.h, fs/xfs/libxfs/xfs_fs.h, xfs_ioctl32.h,
fs/ext4/ext4.h, linux/f2fs.h, fs/ocfs2/ocfs2_fs.h). BTRFS_IOC_CLONE, BTRFS_IOC_CLONE_RANGE and
BTRFS_IOC_FILE_EXTENT_SAME (linux/btrfs.h) are the first two and FIDEDUPERANGE by other names."""
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Families of sockets that stay."""
FAMILIES_END = 64
"""Past every family (AF_MAX of linux/socket.h is 46)."""
IO_URING = ("io_uring_setup", "io_uring_enter", "io_uring_register")
ALLOW_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
"""One instruction: BPF_RET with SECCOMP_RET_ALLOW (linux/seccomp.h)."""
KEPT = 64
"""Compiled filters kept: every command of every sandbox of one policy has the same, and one costs 1.5 ms."""
INT_MASK = 0xFFFFFFFF
"""An ioctl's command is an unsigned int; the kernel ignores the register's upper half."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled filter: `program` is n × 8 bytes (struct sock_filter), what it refuses, what it cannot, and
    its rules as an OCI runtime's profile has them."""

    program: bytes
    refusals: tuple[Refusal, ...]
    unexpressed: tuple[str, ...]
    oci: tuple[Mapping[str, Any], ...] = ()


def compile(policy: Policy, phase: PhaseName) -> bytes:
    """The filter's program for the launcher. It works for any process, whatever capabilities it holds."""
    return build(policy, phase).program


def build(policy: Policy, phase: PhaseName, *, userns_sysctl: bool = True) -> Filter:
    """Compile the filter of a phase.

    `userns_sysctl`: the launcher holds `user.max_user_namespaces` at 0 inside. Then clone3 may stay, whose
    flags lie behind a pointer; else it answers ENOSYS, so that C libraries fall back to clone, whose flags
    the filter sees. With `mode: observe` nothing is refused.
    """
    if policy.mode == "observe":
        return Filter(ALLOW_ALL, (), ("mode is observe: nothing is refused",))
    asked = _Asked(calls=syscalls_of(policy, phase), raw=raw_of(policy, phase))
    return _built(asked.model_dump_json(), userns_sysctl)


def forget() -> None:
    """Keep no filter that was compiled."""
    _built.cache_clear()


class _Asked(BaseModel):
    """What a filter is made of; as text, the key of the filters kept."""

    calls: Syscalls
    raw: list[CallRule]


@functools.lru_cache(maxsize=KEPT)
def _built(asked: str, userns_sysctl: bool) -> Filter:
    said = _Asked.model_validate_json(asked)
    calls = said.calls
    writer = Writer(foreign=calls.foreign_abi == "deny")
    _refuse_listed(writer, calls)
    _refuse_io_uring(writer, calls)
    _refuse_namespaces(writer, calls, userns_sysctl)
    _refuse_ioctls(writer, calls)
    _refuse_families(writer)
    if calls.foreign_abi == "allow" and "X86" in FOREIGN.get(os.uname().machine, ()):
        writer.unexpressed.append(
            "socketcall of i386 makes no socket: the family lies behind a pointer; its socket(2) does"
        )
    _own_rules(writer, said.raw)
    return Filter(writer.program(), tuple(writer.refusals), tuple(writer.unexpressed), tuple(writer.oci))


def syscalls_of(policy: Policy, phase: PhaseName) -> Syscalls:
    """What holds for system calls in a phase."""
    rules = policy.phases.get(phase)
    return rules.syscalls if rules and rules.syscalls else policy.syscalls


def raw_of(policy: Policy, phase: PhaseName) -> list[CallRule]:
    """The policy's own seccomp rules of a phase."""
    rules = policy.phases.get(phase)
    return (rules.seccomp if rules and rules.seccomp is not None else policy.seccomp).raw


def _refuse_listed(writer: Writer, calls: Syscalls) -> None:
    for index, name in enumerate(calls.deny):
        # C libraries fall back from clone3 to clone on ENOSYS alone.
        code = errno.ENOSYS if name == "clone3" else errno.EPERM
        writer.refuse(name, code, ("syscalls", "deny", index))


def _refuse_io_uring(writer: Writer, calls: Syscalls) -> None:
    if calls.io_uring == "deny":
        for name in IO_URING:
            # As a kernel without it would: event loops then fall back to epoll instead of failing.
            writer.refuse(name, errno.ENOSYS, ("syscalls", "io_uring"))


def _refuse_namespaces(writer: Writer, calls: Syscalls, userns_sysctl: bool) -> None:
    if calls.userns == "allow":
        return
    where = ("syscalls", "userns")
    flags_argument = 1 if os.uname().machine == "s390x" else 0
    writer.refuse("unshare", errno.EPERM, where, (0, CLONE_NEWUSER, CLONE_NEWUSER))
    writer.refuse("clone", errno.EPERM, where, (flags_argument, CLONE_NEWUSER, CLONE_NEWUSER))
    if userns_sysctl:
        writer.unexpressed.append(
            "clone3(CLONE_NEWUSER): its flags lie behind a pointer; user.max_user_namespaces=0 refuses it"
        )
    else:
        writer.refuse("clone3", errno.ENOSYS, where)
    writer.unexpressed.append("setns into an existing user namespace: the descriptor's kind is not visible")


def _refuse_ioctls(writer: Writer, calls: Syscalls) -> None:
    if calls.tiocsti == "deny":
        writer.refuse("ioctl", errno.EPERM, ("syscalls", "tiocsti"), (1, INT_MASK, TIOCSTI))
    if calls.extent_exchange == "deny":
        for command in EXTENT_IOCTLS.values():
            # As a file system without the feature would: cp --reflink=auto then copies.
            writer.refuse("ioctl", errno.EOPNOTSUPP, ("syscalls", "extent_exchange"), (1, INT_MASK, command))
        writer.unexpressed.append(
            "extent_exchange: copy_file_range may share extents too; it stays, as cp and git need it"
        )


def _refuse_families(writer: Writer) -> None:
    """Sockets that no network namespace confines (vsock reaches the hypervisor's host and other sandboxes),
    or that no rule of the network and no sensor sees."""
    for family in range(FAMILIES_END):
        if family not in FAMILIES:
            # As a kernel without it would.
            writer.refuse("socket", errno.EAFNOSUPPORT, ("network",), (0, INT_MASK, family))


def _own_rules(writer: Writer, rules: list[CallRule]) -> None:
    for index, rule in enumerate(rules):
        for name in rule.names:
            writer.own(name, rule, ("seccomp", "raw", index))
