"""Which rules of AppArmor's language, those about files aside, decide about a system call."""

from __future__ import annotations

from collections.abc import Iterator

from invigilator.profiles.apparmor import raw
from invigilator.profiles.apparmor.line import Where
from invigilator.profiles.apparmor.statements import Rule
from invigilator.profiles.policy import PhaseName, Policy

KINDS = {
    "ptrace": ("ptrace",), "process_vm_readv": ("ptrace",), "process_vm_writev": ("ptrace",),
    "kill": ("signal",), "tkill": ("signal",), "tgkill": ("signal",),
    "rt_sigqueueinfo": ("signal",), "rt_tgsigqueueinfo": ("signal",), "pidfd_send_signal": ("signal",),
    "mount": ("mount", "remount"), "umount2": ("umount", "unmount"), "pivot_root": ("pivot_root",),
    "socket": ("network", "unix"), "socketpair": ("network", "unix"),
    "mq_open": ("mqueue",), "io_uring_setup": ("io_uring",), "io_uring_register": ("io_uring",),
    "clone": ("userns",), "clone3": ("userns",), "unshare": ("userns",),
}  # fmt: skip
"""Call → first words of the rules that its hooks in the kernel ask (security/apparmor/lsm.c)."""
ALL_OF_IT = frozenset({"ptrace", "signal", "mount", "umount", "unmount", "pivot_root", "mqueue", "io_uring"})
"""Kinds whose bare word means everything that a call of theirs can be."""


def denials(policy: Policy, phase: PhaseName, call: str) -> Iterator[tuple[Rule, Where, bool]]:
    """A phase's own denials that are about a call, where they stand, and whether they refuse it whatever its
    arguments."""
    for rule, where in raw.of(policy, phase):
        if rule.deny and rule.kind in KINDS.get(call, ()):
            yield rule, where, rule.kind in ALL_OF_IT and not rule.rest
