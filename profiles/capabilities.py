"""Capabilities that a sandbox's commands may have, by the names of capabilities(7)."""

from __future__ import annotations

SANDBOX = (
    "audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service",
    "setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
)  # fmt: skip
"""What root in a container commonly has (Docker's default set) without net_raw."""
KNOWN = frozenset(
    {*SANDBOX, "audit_control", "audit_read", "block_suspend", "bpf", "checkpoint_restore", "dac_read_search",
     "ipc_lock", "ipc_owner", "lease", "linux_immutable", "mac_admin", "mac_override", "net_admin",
     "net_broadcast", "net_raw", "perfmon", "sys_admin", "sys_boot", "sys_module", "sys_nice", "sys_pacct",
     "sys_ptrace", "sys_rawio", "sys_resource", "sys_time", "sys_tty_config", "syslog", "wake_alarm"}
)  # fmt: skip
"""Every capability of linux/capability.h."""
IN_USER_NAMESPACES = ("dac_read_search", "net_admin", "net_raw", "sys_admin", "sys_ptrace")
"""What programs that make namespaces of their own (browsers) use inside those; outside them nobody has it."""
