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
from dataclasses import dataclass
from typing import IO, Any, cast

from pydantic import BaseModel

from invigilator.profiles.policy import CallRule, PhaseName, Policy, Syscalls

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
FOREIGN = {"x86_64": ("X86", "X32"), "aarch64": ("ARM",)}
"""By machine (uname -m): the other ABIs that its kernel may serve, as libseccomp names them."""
ALLOW_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
"""One instruction: BPF_RET with SECCOMP_RET_ALLOW (linux/seccomp.h)."""
KEPT = 64
"""Compiled filters kept: every command of every sandbox of one policy has the same, and one costs 1.5 ms."""
INT_MASK = 0xFFFFFFFF
"""An ioctl's command is an unsigned int; the kernel ignores the register's upper half."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that the filter refuses: the call (and argument), by which errno, by which policy key."""

    call: str
    errno: int
    where: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled filter: `program` is n × 8 bytes (struct sock_filter), what it refuses, what it cannot."""

    program: bytes
    refusals: tuple[Refusal, ...]
    unexpressed: tuple[str, ...]


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


class _Asked(BaseModel):
    """What a filter is made of; as text, the key of the filters kept."""

    calls: Syscalls
    raw: list[CallRule]


@functools.lru_cache(maxsize=KEPT)
def _built(asked: str, userns_sysctl: bool) -> Filter:
    said = _Asked.model_validate_json(asked)
    calls = said.calls
    writer = _Writer(foreign=calls.foreign_abi == "deny")
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
    return Filter(writer.program(), tuple(writer.refusals), tuple(writer.unexpressed))


def syscalls_of(policy: Policy, phase: PhaseName) -> Syscalls:
    """What holds for system calls in a phase."""
    rules = policy.phases.get(phase)
    return rules.syscalls if rules and rules.syscalls else policy.syscalls


def raw_of(policy: Policy, phase: PhaseName) -> list[CallRule]:
    """The policy's own seccomp rules of a phase."""
    rules = policy.phases.get(phase)
    return (rules.seccomp if rules and rules.seccomp is not None else policy.seccomp).raw


def condition(rule: CallRule) -> str:
    """When a rule holds, in words."""
    signs = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GE": ">=", "GT": ">"}
    said = []
    for one in rule.args:
        if one.op == "SCMP_CMP_MASKED_EQ":
            said.append(f"argument {one.index} & {one.value:#x} == {one.value_two:#x}")
        else:
            said.append(f"argument {one.index} {signs[one.op.rpartition('_')[2]]} {one.value:#x}")
    return " and ".join(said)


def known(name: str) -> bool:
    """Whether libseccomp knows a system call of this name on this machine or on another."""
    return _number(name) != _UNKNOWN


def _refuse_listed(writer: _Writer, calls: Syscalls) -> None:
    for index, name in enumerate(calls.deny):
        # C libraries fall back from clone3 to clone on ENOSYS alone.
        code = errno.ENOSYS if name == "clone3" else errno.EPERM
        writer.refuse(name, code, ("syscalls", "deny", index))


def _refuse_io_uring(writer: _Writer, calls: Syscalls) -> None:
    if calls.io_uring == "deny":
        for name in IO_URING:
            # As a kernel without it would: event loops then fall back to epoll instead of failing.
            writer.refuse(name, errno.ENOSYS, ("syscalls", "io_uring"))


def _refuse_namespaces(writer: _Writer, calls: Syscalls, userns_sysctl: bool) -> None:
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


def _refuse_ioctls(writer: _Writer, calls: Syscalls) -> None:
    if calls.tiocsti == "deny":
        writer.refuse("ioctl", errno.EPERM, ("syscalls", "tiocsti"), (1, INT_MASK, TIOCSTI))
    if calls.extent_exchange == "deny":
        for command in EXTENT_IOCTLS.values():
            # As a file system without the feature would: cp --reflink=auto then copies.
            writer.refuse("ioctl", errno.EOPNOTSUPP, ("syscalls", "extent_exchange"), (1, INT_MASK, command))
        writer.unexpressed.append(
            "extent_exchange: copy_file_range may share extents too; it stays, as cp and git need it"
        )


def _refuse_families(writer: _Writer) -> None:
    """Sockets that no network namespace confines (vsock reaches the hypervisor's host and other sandboxes),
    or that no rule of the network and no sensor sees."""
    for family in range(FAMILIES_END):
        if family not in FAMILIES:
            # As a kernel without it would.
            writer.refuse("socket", errno.EAFNOSUPPORT, ("network",), (0, INT_MASK, family))


def _own_rules(writer: _Writer, rules: list[CallRule]) -> None:
    for index, rule in enumerate(rules):
        for name in rule.names:
            writer.own(name, rule, ("seccomp", "raw", index))


_UNKNOWN = -1
"""__NR_SCMP_ERROR of seccomp.h."""


class SeccompMissingError(RuntimeError):
    """Filters cannot be made here."""


def _seccomp() -> Any:
    try:
        import seccomp
    except ImportError as error:
        raise SeccompMissingError("libseccomp's Python module is missing; install python3-seccomp") from error
    return seccomp


def _number(name: str) -> int:
    module = _seccomp()
    try:
        return int(module.resolve_syscall(module.Arch(), name))
    except (ValueError, RuntimeError):
        return _UNKNOWN


def _comparison(module: Any, op: str) -> Any:
    return getattr(module, op.removeprefix("SCMP_CMP_"))


class _Writer:
    """Collects refusals into libseccomp's filter; what libseccomp does not know is reported, not dropped."""

    def __init__(self, *, foreign: bool) -> None:
        self._module = _seccomp()
        self._filter = self._module.SyscallFilter(defaction=self._module.ALLOW)
        # 2: a binary tree instead of one comparison a call (seccomp_attr_set(3)).
        self._filter.set_attr(self._module.Attr.CTL_OPTIMIZE, 2)
        self._refused_whole: set[str] = set()
        self.refusals: list[Refusal] = []
        self.unexpressed: list[str] = []
        others = FOREIGN.get(os.uname().machine, ())
        if foreign:
            self._filter.set_attr(self._module.Attr.ACT_BADARCH, self._module.ERRNO(errno.ENOSYS))
            where = ("syscalls", "foreign_abi")
            self.refusals += [
                Refusal(f"any call by ABI {abi.lower()}", errno.ENOSYS, where) for abi in others
            ]
        else:
            self._filter.set_attr(self._module.Attr.ACT_BADARCH, self._module.ALLOW)
            for abi in others:
                self._filter.add_arch(getattr(self._module.Arch, abi))

    def refuse(
        self, name: str, code: int, where: tuple[str | int, ...], masked: tuple[int, int, int] | None = None
    ) -> None:
        """Answer `name` with `code`; `masked` (argument, mask, value): where argument & mask == value."""
        conditions = []
        if masked:
            argument, mask, value = masked
            conditions = [self._module.Arg(argument, self._module.MASKED_EQ, mask, value)]
        if name in self._refused_whole:
            return
        if not known(name):
            self.unexpressed.append(f"{name}: this machine's libseccomp does not know this call")
            return
        self._filter.add_rule(self._module.ERRNO(code), name, *conditions)
        if not masked:
            self._refused_whole.add(name)
        detail = f"{name}(argument {masked[0]} & {masked[1]:#x} == {masked[2]:#x})" if masked else name
        self.refusals.append(Refusal(detail, code, where))

    def own(self, name: str, rule: CallRule, where: tuple[str | int, ...]) -> None:
        """A rule as an OCI profile has it."""
        if name in self._refused_whole or not known(name):
            why = (
                "it is refused whole already"
                if name in self._refused_whole
                else "libseccomp does not know it"
            )
            self.unexpressed.append(f"{name}: {why}")
            return
        code = getattr(errno, rule.errno)
        action = self._module.LOG if rule.action == "SCMP_ACT_LOG" else self._module.ERRNO(code)
        conditions = [
            self._module.Arg(one.index, _comparison(self._module, one.op), one.value, one.value_two)
            for one in rule.args
        ]
        try:
            self._filter.add_rule(action, name, *conditions)
        except (OSError, RuntimeError, ValueError) as error:
            self.unexpressed.append(f"{name}: libseccomp refuses the rule ({error})")
            return
        if rule.action == "SCMP_ACT_ERRNO":
            detail = f"{name}({condition(rule)})" if rule.args else name
            self.refusals.append(Refusal(detail, code, where))

    def program(self) -> bytes:
        """The BPF program as bytes."""
        with os.fdopen(os.memfd_create("seccomp", os.MFD_CLOEXEC), "w+b") as file:
            self._filter.export_bpf(cast("IO[bytes]", file))
            file.seek(0)
            return file.read()
