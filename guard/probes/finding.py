"""One finding about the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["yes", "partly", "no", "unknown"]
Tier = Literal[
    "access", "tracepoint", "cgroup", "lsm", "seccomp", "limits", "namespaces", "disk", "apparmor",
    "backends", "build", "store",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """`name` of `tier` works (`yes`), works in part, does not, or could not be tried.

    `detail` says what was found or why not, `gives` what it is good for, `fix` what to install or change.
    `needed`: without it `guard run` does not work on this machine.
    """

    tier: Tier
    name: str
    state: State
    detail: str
    gives: str
    fix: str = ""
    needed: bool = False
