"""Debian's user-mode-linux: a kernel that is a program. AppArmor, cgroup v2, user namespaces; one processor,
no BTF, no tracing programs."""

from __future__ import annotations

import shutil
from pathlib import Path

from rig.boot import Kernel

MEMORY = "2G"


class UserModeLinux(Kernel):
    """See the module."""

    name = "uml"

    def missing(self) -> str:
        """See the base."""
        return "" if shutil.which("linux.uml") else "user-mode-linux: apt-get install user-mode-linux"

    def command(self, disk: Path, out: Path, scratch: Path, words: str, cache: Path) -> list[str]:
        """See the base."""
        return [
            "linux.uml", f"ubd0={scratch}/cow,{disk}", "root=/dev/ubda", "rw", "rootfstype=ext4",
            f"mem={MEMORY}", f"uml_dir={scratch}/uml", "con=null", "con0=null,fd:1", "quiet", "loglevel=4",
            "init=/bin/sh", "security=apparmor", "apparmor=1", *words.split(), "--", "/rig/init",
        ]  # fmt: skip


KERNEL = UserModeLinux()
