"""Debian's own kernel in QEMU without acceleration."""

from __future__ import annotations

import shutil
from pathlib import Path

from rig.boot import Kernel


class Tcg(Kernel):
    """See the module."""

    name = "tcg"

    def missing(self) -> str:
        """See the base."""
        return "" if shutil.which("qemu-system-x86_64") else "QEMU: apt-get install qemu-system-x86"

    def command(self, disk: Path, out: Path, scratch: Path, words: str, cache: Path) -> list[str]:
        """See the base."""
        raise NotImplementedError


KERNEL = Tcg()
