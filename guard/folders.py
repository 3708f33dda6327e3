"""The folders that a client names, and whether the agent sees the same ones under those names.

An agent has a mount namespace of its own. What is mounted after its start need not reach it (it does where
the host's mounts are shared, as systemd makes them), and a folder of the same name may lie underneath.
"""

from __future__ import annotations

import os
from pathlib import Path

from invigilator.guard.errors import GuardError
from invigilator.guard.order import SandboxOrder


def identity(folder: str | os.PathLike[str] | None) -> tuple[int, int] | None:
    """Device and inode of a folder as this process sees it; None without one."""
    if folder is None:
        return None
    found = Path(folder).stat()
    return found.st_dev, found.st_ino


def require_same(order: SandboxOrder) -> None:
    """`GuardError` where a folder of the order is another one here than where the order was written."""
    for what, folder, meant in (
        ("workspace", order.workspace, order.workspace_identity),
        ("root", order.root, order.root_identity),
    ):
        if folder is not None and meant is not None and _seen(folder) != meant:
            raise GuardError(
                f"the agent sees another folder there: something was mounted after it started (--{what})",
                where=folder,
                fix="`guard down`, then run again: a new agent sees the mount",
            )


def _seen(folder: str) -> tuple[int, int] | None:
    try:
        return identity(folder)
    except OSError:
        return None
