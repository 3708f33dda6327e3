"""Capabilities that a sandbox's commands may have, by the names of capabilities(7)."""

from __future__ import annotations

SANDBOX = (
    "audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service",
    "setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
)  # fmt: skip
"""What root in a container commonly has (Docker's default set) without net_raw."""
IN_USER_NAMESPACES = ("dac_read_search", "net_admin", "net_raw", "sys_admin", "sys_ptrace")
"""What programs that make namespaces of their own (browsers) use inside those; outside them nobody has it."""
