"""What binds a command, and what of it is in force."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from invigilator.profiles import seccomp
from invigilator.profiles.policy import Policy
from invigilator.profiles.seccomp_writer import SeccompMissingError
from invigilator.sandbox.base import UnavailableError
from invigilator.sandbox.cgroups import SandboxCgroups
from invigilator.sandbox.hierarchies import Hierarchies

KERNEL = Path("/proc/sys/kernel/seccomp")
"""There where the kernel takes filters (seccomp(2))."""
CAPABILITIES = {
    "chown": 0, "dac_override": 1, "fowner": 3, "fsetid": 4, "kill": 5, "setgid": 6, "setuid": 7,
    "setpcap": 8, "net_bind_service": 10, "sys_chroot": 18, "mknod": 27, "audit_write": 29, "setfcap": 31,
}  # fmt: skip
"""Docker's default set without NET_RAW; numbers of <linux/capability.h>."""

WAKE_ALARM = 35
"""Good for nothing in a user namespace, but who has it can be neither traced nor looked into (/proc/PID/root,
fd, environ, mem) by who has not: it stands between the platform's commands and the agent's, which have the
same user ids (cap_ptrace_access_check asks for all capabilities of the target)."""


def capabilities(platform: bool) -> int:
    """Capabilities of a command as a bit set."""
    bits = sum(1 << number for number in CAPABILITIES.values())
    return bits | 1 << WAKE_ALARM if platform else bits


def require_filters(policy: Policy) -> None:
    """`UnavailableError` where the policy refuses system calls and nothing here can."""
    try:
        refusing = seccomp.compile(policy, "agent") != seccomp.ALLOW_ALL
    except SeccompMissingError as error:
        raise UnavailableError(f"no system call can be refused here: {error}") from error
    if refusing and not KERNEL.is_dir():
        raise UnavailableError(
            "this kernel has no seccomp filters: boot one that has (CONFIG_SECCOMP_FILTER), or write"
            " `mode: observe`"
        )


def enforcement(
    policy: Policy, groups: SandboxCgroups, hierarchies: Hierarchies, *, linked: bool, named: bool = False
) -> Mapping[str, str]:
    """Tier → state, as observed. `linked`: there is a link to the outside, which the host's end filters.
    `named`: the guard's resolver hands out names; absent: nobody does, or others that addresses allow."""
    observing = policy.mode == "observe"
    limited = all((groups.v1.get(name, groups.limited)).is_dir() for name in ("memory", "pids"))
    filtered = bool(seccomp.compile(policy, "agent")) and KERNEL.is_dir()
    slowed = groups.disks is not None and groups.disks.in_force()
    disks = {"io": "enforce" if slowed else "absent"} if groups.limits.io else {}
    return {
        "seccomp": "enforce" if filtered else "off",
        "apparmor": "absent",
        "cgroup": "enforce" if limited and not hierarchies.missing else "absent",
        **disks,
        "network": "off" if observing and linked else "enforce",
        "names": "enforce" if named else "off" if observing and linked else "absent",
        "mount": "off" if observing else "enforce",
    }
