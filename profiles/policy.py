"""The policy: what a sandbox may do, what is watched, and what misbehaviour costs.

Three parts, each versioned by the SHA-256 of its canonical JSON (RFC 8785) with defaults filled in:
confinement (filesystem, network, limits, syscalls, phases, mode, require), detection (protected classes,
canaries, detectors) and penalty.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Access = Literal["allow", "watch", "deny"]
Action = Literal["allow", "deny"]
PhaseName = Literal["setup", "agent", "verify"]


class Part(BaseModel):
    """Base of the policy's parts: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ProtectedClass(Part):
    """A class of paths. `watch`: allowed, and an incident; `deny`: refused, and an incident."""

    paths: list[str]
    read: Access
    write: Access


CLASS_DEFAULTS: dict[str, tuple[Access, Access]] = {
    "system_binary": ("allow", "watch"),
    "test": ("allow", "watch"),
    "reward": ("allow", "deny"),
    "grader": ("deny", "deny"),
    "answer": ("deny", "deny"),
    "harness_log": ("deny", "deny"),
    "control_socket": ("deny", "deny"),
    "harness": ("allow", "watch"),
    "state": ("allow", "watch"),
}
"""(read, write) of each known class; the class `hidden` stands for `filesystem.hidden`."""


class CanarySpec(Part):
    """Where the launcher plants a wrong answer, and which channel its reading belongs to."""

    under: str
    channel: str = "residual"


class Filesystem(Part):
    """`filesystem:` of the policy."""

    workspace: list[str] = ["/workspace"]
    submission: list[str] = ["/workspace"]
    hidden: list[str] = []
    protected: dict[str, ProtectedClass] = {}
    canaries: list[CanarySpec] = []


class EgressRule(Part):
    """One egress rule; the first that matches decides. `target`: name, address or CIDR."""

    name: str
    action: Action = "allow"
    target: str
    ports: list[int] = []
    protocol: Literal["tcp", "udp", "any"] = "tcp"


class Network(Part):
    """`network:` of the policy or of a phase."""

    default_action: Action = "deny"
    egress: list[EgressRule] = []


class Limits(Part):
    """Resource limits, in bytes, cores, processes and seconds (units are parsed from `2GiB`, `3600s`)."""

    memory_bytes: int = 2 << 30
    cpus: float = 2.0
    pids: int = 512
    disk_bytes: int = 10 << 30
    output_bytes: int = 64 << 20
    ttl_s: float = 3600.0


class Syscalls(Part):
    """System calls refused with an errno (never a kill)."""

    io_uring: Action = "deny"
    foreign_abi: Action = "deny"
    userns: Action = "deny"
    deny: list[str] = ["bpf", "perf_event_open", "userfaultfd", "keyctl"]


class PhaseRules(Part):
    """What differs in a phase."""

    network: Network | None = None
    survivors: Literal["end", "keep"] = "end"


class Detectors(Part):
    """Which detectors run, which only watch, and their thresholds by detector and name (SI units)."""

    disabled: list[str] = []
    monitor_only: list[str] = []
    thresholds: dict[str, dict[str, float]] = {}


class PenaltyRules(Part):
    """The penalty's formula: `value = -min(cap, Σ weight × factor)`."""

    reward_range: tuple[float, float] = (0.0, 1.0)
    cap: float = 2.0
    attempts: float = 0.0
    flood: float = 0.1
    min_confidence: float = 0.8
    weights: dict[str, float] = {}


class Policy(Part):
    """A whole policy, `extends` resolved and defaults filled in."""

    version: Literal[1] = 1
    name: str
    mode: Literal["enforce", "observe"] = "enforce"
    require: list[str] = ["seccomp", "cgroup"]
    filesystem: Filesystem = Filesystem()
    network: Network = Network()
    limits: Limits = Limits()
    syscalls: Syscalls = Syscalls()
    phases: dict[PhaseName, PhaseRules] = {}
    detectors: Detectors = Detectors()
    penalty: PenaltyRules = PenaltyRules()
