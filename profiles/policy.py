"""The policy: what a sandbox may do, what is watched, and what misbehaviour costs.

Three parts, each versioned by the SHA-256 of its canonical JSON (RFC 8785) with defaults filled in:
confinement (filesystem, network, limits, syscalls, apparmor, seccomp, phases, mode, require), detection
(protected classes, canaries, detectors) and penalty.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Access = Literal["allow", "watch", "deny"]
Comparison = Literal[
    "SCMP_CMP_EQ",
    "SCMP_CMP_NE",
    "SCMP_CMP_LT",
    "SCMP_CMP_LE",
    "SCMP_CMP_GE",
    "SCMP_CMP_GT",
    "SCMP_CMP_MASKED_EQ",
]
Action = Literal["allow", "deny"]
PhaseName = Literal["setup", "agent", "verify"]
FileAccess = Literal["read", "write", "append", "exec", "link", "lock", "mmap"]
"""Ways to use a file that AppArmor tells apart. `write` holds `append`, and creating, renaming and removing;
`link`: a hard link there or to it; `mmap`: mapping it as code, which allowing `exec` allows too."""


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
UNKNOWN_CLASS_DEFAULT: tuple[Access, Access] = ("watch", "watch")
"""(read, write) of a class that no detector knows: on the record, and nothing refused."""


class CanarySpec(Part):
    """Where the launcher plants a wrong answer, and which channel its reading belongs to."""

    under: str
    channel: str = "residual"


class FileRule(Part):
    """What may and may not be done with these paths and all below them. Of two rules the denying one wins.

    Only AppArmor tells so much apart. The rule binds in `phases`.
    """

    paths: list[str]
    allow: list[FileAccess] = []
    deny: list[FileAccess] = []
    phases: list[PhaseName] = ["agent"]


class Filesystem(Part):
    """`filesystem:` of the policy.

    `default_action` decides, for the agent, about what no class, workspace or rule of `files` names.
    """

    workspace: list[str] = ["/workspace"]
    submission: list[str] = ["/workspace"]
    hidden: list[str] = []
    protected: dict[str, ProtectedClass] = {}
    canaries: list[CanarySpec] = []
    default_action: Action = "allow"
    files: list[FileRule] = []


class EgressRule(Part):
    """One egress rule; the first that matches decides. `target`: name, address or CIDR; no ports: all.

    `private`: the name may resolve to a private, link-local or metadata address; otherwise that is refused,
    so that who owns the name cannot open the inside of the network.
    """

    name: str
    action: Action = "allow"
    target: str
    ports: list[int] = []
    protocol: Literal["tcp", "udp", "any"] = "tcp"
    private: bool = False


class BindRule(Part):
    """Which own addresses and ports a socket may take; the first rule that matches decides.

    `addresses`: addresses and CIDRs; none: every address of IPv4 and IPv6. Port 0 stands for one that the
    kernel is to choose; no ports: all, 0 too.
    """

    name: str
    action: Action = "allow"
    addresses: list[str] = []
    ports: list[int] = []
    protocol: Literal["tcp", "udp", "any"] = "tcp"


class Network(Part):
    """`network:` of the policy or of a phase. `default_bind` decides where no rule of `bind` matches."""

    default_action: Action = "deny"
    egress: list[EgressRule] = []
    default_bind: Action = "allow"
    bind: list[BindRule] = []


class IoLimits(Part):
    """What may be read from and written to each disk in a second; None: as much as it gives."""

    read_bytes_per_s: int | None = None
    write_bytes_per_s: int | None = None
    read_ops_per_s: int | None = None
    write_ops_per_s: int | None = None


class Limits(Part):
    """Resource limits, in bytes, cores, processes and seconds (units are parsed from `2GiB`, `3600s`)."""

    memory_bytes: int = 2 << 30
    cpus: float = 2.0
    pids: int = 512
    disk_bytes: int = 10 << 30
    output_bytes: int = 64 << 20
    ttl_s: float = 3600.0
    io: IoLimits = IoLimits()


class Syscalls(Part):
    """System calls refused with an errno (never a kill).

    `foreign_abi`: int 0x80 and x32. `userns`: new user namespaces. `tiocsti`: typing into a terminal on its
    reader's behalf. `extent_exchange`: ioctls that clone or exchange data extents (content changes with no
    write); `watch` leaves them to the sensor.
    """

    io_uring: Action = "deny"
    foreign_abi: Action = "deny"
    userns: Action = "deny"
    tiocsti: Action = "deny"
    extent_exchange: Access = "watch"
    deny: list[str] = ["bpf", "perf_event_open", "userfaultfd", "keyctl"]


class AppArmorRules(Part):
    """`apparmor:` of the policy. `raw`: rules in AppArmor's own language, one an entry, without comma."""

    raw: list[str] = []


class CallArgument(Part):
    """A condition on a system call's scalar argument, as an OCI seccomp profile writes it.

    With `SCMP_CMP_MASKED_EQ`, `value` is the mask and `value_two` what the masked argument must be.
    """

    index: int
    op: Comparison = "SCMP_CMP_EQ"
    value: int
    value_two: int = 0


class CallRule(Part):
    """A seccomp rule as an OCI profile writes it; `args` must all hold. `errno`: the name of the answer."""

    names: list[str]
    action: Literal["SCMP_ACT_ERRNO", "SCMP_ACT_LOG"] = "SCMP_ACT_ERRNO"
    errno: str = "EPERM"
    args: list[CallArgument] = []


class SeccompRules(Part):
    """`seccomp:` of the policy: rules beside those of `syscalls`."""

    raw: list[CallRule] = []


class ClassAccess(Part):
    """What a phase may do with a protected class."""

    read: Access
    write: Access


class PhaseRules(Part):
    """What differs in a phase; but for `protected` each part is whole, no difference (None: as everywhere).

    `protected` binds the classes in a phase. The agent's phase is bound by `filesystem.protected` itself; the
    platform's phases, setup and verify, by nothing but what stands here. `survivors`: what becomes of
    processes of earlier phases when this one begins.
    """

    network: Network | None = None
    syscalls: Syscalls | None = None
    apparmor: AppArmorRules | None = None
    seccomp: SeccompRules | None = None
    protected: dict[str, ClassAccess] = {}
    survivors: Literal["end", "keep"] = "end"


class Detectors(Part):
    """Which detectors run, which only watch, and their thresholds by detector and name.

    A threshold's name is as the YAML has it, its value in SI units: `window: 10s` is `{"window": 10.0}`,
    `rate: 1MiB/s` is `{"rate": 1048576.0}`.
    """

    disabled: list[str] = []
    monitor_only: list[str] = []
    thresholds: dict[str, dict[str, float]] = {}


class PenaltyRules(Part):
    """The penalty's formula: `value = -min(cap, Σ weight × factor)`.

    `weights` of a loaded policy has every kind of the library: its own where it gives one, else the library's
    default (`library/weights.yaml`), so that the penalty version pins them all.
    """

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
    apparmor: AppArmorRules = AppArmorRules()
    seccomp: SeccompRules = SeccompRules()
    phases: dict[PhaseName, PhaseRules] = {}
    detectors: Detectors = Detectors()
    penalty: PenaltyRules = PenaltyRules()
