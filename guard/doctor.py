"""What this machine can observe and enforce, why not, and what to install for more."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

from invigilator.guard.home import Home
from invigilator.guard.probes import bpf, cgroup, confinement, names, software
from invigilator.guard.probes.finding import Finding, Tier

TIERS: dict[Tier, str] = {
    "access": "who asks",
    "tracepoint": "observe: what processes do",
    "cgroup": "observe and enforce: the network",
    "lsm": "observe and enforce: upper tiers",
    "seccomp": "enforce: system calls",
    "limits": "enforce: resource limits",
    "namespaces": "enforce: isolation",
    "disk": "enforce: the disk limit",
    "apparmor": "enforce: path rules",
    "backends": "other backends",
    "build": "tools to build with",
    "store": "the record",
}
"""The tiers in the order in which they are shown, and what each is for."""

OFFLINE_COMMANDS = ("policy", "eval", "sql", "incidents", "penalties", "version", "completion")


@dataclass(frozen=True, slots=True)
class Examination:
    """Everything found. `can_run`: `guard run` works here; else `missing` says what it lacks."""

    machine: str
    kernel: str
    findings: tuple[Finding, ...]

    @property
    def missing(self) -> tuple[Finding, ...]:
        """What `guard run` needs and this machine has not (or could not be asked for)."""
        return tuple(found for found in self.findings if found.needed and found.state in ("no", "unknown"))

    @property
    def can_run(self) -> bool:
        """Whether a guarded rollout works here."""
        return not self.missing

    def to_json(self) -> dict[str, Any]:
        """The examination as plain data."""
        return {
            "machine": self.machine,
            "kernel": self.kernel,
            "can_run": self.can_run,
            "missing": [found.name for found in self.missing],
            "offline_commands": list(OFFLINE_COMMANDS),
            "tiers": dict(TIERS),
            "findings": [asdict(found) for found in self.findings],
        }


def examine(home: Home) -> Examination:
    """Try everything; takes about half a second, and one for each name server that is silent;
    leaves nothing behind."""
    findings = [
        *software.findings(home),
        *bpf.findings(cgroup.v2_root()),
        *confinement.findings(),
        names.names(),
    ]
    order = list(TIERS)
    findings.sort(key=lambda found: order.index(found.tier))
    return Examination(platform.machine(), f"Linux {platform.release()}", tuple(findings))
