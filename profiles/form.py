"""The policy as it is written: the YAML's keys and their meaning. All but version and name may be left out.

The JSON Schema for editors is made from these models, and a file's errors are found by them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from invigilator.profiles.fields import (
    Block,
    CallName,
    Duration,
    Name,
    Number,
    Operations,
    OwnPort,
    Path,
    Port,
    Quantity,
    Rate,
    RawRule,
    Size,
    Target,
    Weight,
    Word64,
    call_action,
    errno_name,
    list_or_table,
)
from invigilator.profiles.policy import Access, Action, Comparison, FileAccess, PhaseName


class Form(BaseModel):
    """Base of all forms: strict types, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ClassForm(Form):
    """A class of paths: these and all below them. A bare list of paths takes the class's defaults."""

    paths: list[Path] = []
    read: Access | None = Field(
        default=None, description="allow; watch: allowed, and an incident; deny: refused, and an incident"
    )
    write: Access | None = Field(
        default=None, description="as read; creating, renaming, linking and removing are writes"
    )


class AccessForm(Form):
    """What a phase may do with a class."""

    read: Access | None = None
    write: Access | None = None


class CanaryForm(Form):
    """A planted wrong answer or credential; its name and content vary by rollout."""

    under: Path = Field(description="folder that it is planted in")
    channel: Name = Field(
        default="residual", description="what reading it stands for: residual, answer, credential"
    )


class FileRuleForm(Form):
    """What may and may not be done with these paths and all below them; only AppArmor enforces it."""

    paths: Annotated[list[Path], Field(min_length=1)]
    allow: list[FileAccess] = Field(
        default=[], description="only needed where `default_action` is deny; write holds append"
    )
    deny: list[FileAccess] = Field(default=[], description="wins over every allow")
    phases: Annotated[list[PhaseName], Field(min_length=1)] = Field(
        default=["agent"], description="where the rule binds"
    )


class FilesystemForm(Form):
    """Files and folders, as the sandbox sees them."""

    workspace: list[Path] | None = Field(
        default=None, description="folders that the agent works in, copied back at the end"
    )
    submission: list[Path] | None = Field(default=None, description="what is handed in")
    hidden: list[Path] | None = Field(default=None, description="not there at all, in every phase")
    protected: dict[Name, Annotated[ClassForm, BeforeValidator(list_or_table)]] | None = Field(
        default=None, description="classes of paths; the longest path wins"
    )
    canaries: list[CanaryForm] | None = None
    default_action: Action | None = Field(
        default=None, description="for what no class, workspace or rule of `files` names; deny needs AppArmor"
    )
    files: list[FileRuleForm] | None = Field(default=None, description="rules by kind of access")


class EgressForm(Form):
    """One rule for outbound traffic; the first that matches decides."""

    name: Name = Field(description="named in incidents, and by `guard policy explain`")
    action: Action = "allow"
    target: Target = Field(description="host name, wildcard `*.zone`, address or CIDR")
    ports: list[Port] = Field(default=[], description="none: every port")
    protocol: Literal["tcp", "udp", "any"] = "tcp"
    private: bool = Field(
        False, description="the name may resolve to a private, link-local or metadata address"
    )


class BindForm(Form):
    """One rule for the addresses and ports that a socket takes; the first that matches decides."""

    name: Name = Field(description="named in the refusal's event, and by `guard policy explain`")
    action: Action = "allow"
    addresses: list[Block] = Field(default=[], description="addresses or CIDRs; none: every address")
    ports: list[OwnPort] = Field(default=[], description="0: the kernel chooses; none: every port")
    protocol: Literal["tcp", "udp", "any"] = "tcp"


class NetworkForm(Form):
    """Outbound traffic, of which the sandbox's own loopback is allowed, and the sandbox's own ports."""

    default_action: Action | None = Field(
        default=None, description="for outbound traffic that no rule of `egress` matches"
    )
    egress: list[EgressForm] | None = None
    default_bind: Action | None = Field(
        default=None, description="for addresses and ports that no rule of `bind` matches"
    )
    bind: list[BindForm] | None = Field(default=None, description="which addresses and ports may be taken")


class IoForm(Form):
    """Reading from and writing to each disk that the sandbox's files lie on."""

    read: Rate | None = Field(default=None, description="bytes a second")
    write: Rate | None = Field(default=None, description="bytes a second")
    read_ops: Operations | None = Field(default=None, description="operations of the disk a second")
    write_ops: Operations | None = Field(default=None, description="operations of the disk a second")


class LimitsForm(Form):
    """Resources of the whole sandbox."""

    memory: Size | None = None
    cpus: float | None = Field(default=None, ge=0.01, le=4096, description="cores, for example 1.5")
    pids: int | None = Field(default=None, ge=1, le=4194304, description="processes and threads at once")
    disk: Size | None = Field(default=None, description="what may be written; full means ENOSPC")
    output: Size | None = Field(default=None, description="recorded output; more is counted and dropped")
    ttl: Duration | None = Field(default=None, description="time to live of a rollout")
    io: IoForm | None = Field(default=None, description="reading and writing of disks; none: no limit")


class SyscallsForm(Form):
    """System calls; a refused one is answered with an errno, never a kill."""

    io_uring: Action | None = Field(
        default=None, description="allow degrades the coverage of files and network"
    )
    foreign_abi: Action | None = Field(default=None, description="int 0x80 and x32")
    userns: Action | None = Field(
        default=None, description="new user namespaces (Chromium and bubblewrap want them)"
    )
    tiocsti: Action | None = Field(default=None, description="typing into a terminal on its reader's behalf")
    extent_exchange: Access | None = Field(
        default=None, description="ioctls that clone or exchange data extents"
    )
    deny: list[CallName] | None = Field(default=None, description="by name")


class AppArmorForm(Form):
    """For engineers who think in profiles: rules that go into the profile as they stand."""

    raw: list[RawRule] | None = Field(
        default=None, description="one rule of apparmor.d(5) an entry, or a block of text with several"
    )


class ArgumentForm(Form):
    """A condition on a scalar argument."""

    index: int = Field(ge=0, le=5)
    op: Comparison = Field(default="SCMP_CMP_EQ", description="MASKED_EQ: argument & value == value_two")
    value: Word64
    value_two: Word64 = 0


class CallRuleForm(Form):
    """A rule as an OCI seccomp profile writes it."""

    names: Annotated[list[CallName], Field(min_length=1)]
    action: Annotated[Literal["SCMP_ACT_ERRNO", "SCMP_ACT_LOG"], BeforeValidator(call_action)] = (
        "SCMP_ACT_ERRNO"
    )
    errno: Annotated[str, BeforeValidator(errno_name)] = Field(
        default="EPERM", description="a name of errno(3)"
    )
    args: list[ArgumentForm] = Field(default=[], description="all must hold")


class SeccompForm(Form):
    """For engineers who think in profiles: rules beside those of `syscalls`."""

    raw: list[CallRuleForm] | None = None


class PhaseForm(Form):
    """What differs in a phase from the rest of the policy."""

    network: NetworkForm | None = None
    syscalls: SyscallsForm | None = None
    apparmor: AppArmorForm | None = None
    seccomp: SeccompForm | None = None
    protected: dict[Name, AccessForm] | None = Field(
        default=None, description="classes that bind the platform's phases too"
    )
    survivors: Literal["end", "keep"] | None = Field(default=None, description="processes of earlier phases")


class PhasesForm(Form):
    """setup and verify are the platform's, agent is the agent's."""

    setup: PhaseForm | None = None
    agent: PhaseForm | None = None
    verify: PhaseForm | None = None


class DetectorsForm(Form):
    """What is judged. A monitor-only detector is shown to researchers, never to trainers or agents."""

    disabled: list[Name] | None = None
    monitor_only: list[Name] | None = None
    thresholds: dict[Name, dict[Name, Quantity]] | None = Field(
        default=None, description="by detector and name, with units"
    )


class PenaltyForm(Form):
    """value = -min(cap, Σ over kinds of weight × the kind's largest outcome factor)."""

    reward_range: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = Field(
        default=None, description="[lowest, highest] reward of an honest rollout"
    )
    cap: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    attempts: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="factor of a failed or refused single act; of a success it is 1"
    )
    flood: Weight | None = Field(default=None, description="cost, once, of a flood past its cap")
    min_confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    weights: dict[Name, Weight] | None = Field(
        default=None, description="by kind; others take the library's default"
    )


class PolicyForm(Form):
    """A policy of the misbehaviour guard for AI agents' sandboxes."""

    version: Literal[1] = Field(description="version of the policy language")
    name: Name
    extends: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="a policy of the library, or a file relative to this one"
    )
    mode: Literal["enforce", "observe"] | None = Field(
        default=None, description="observe: record, refuse nothing"
    )
    require: list[Literal["seccomp", "cgroup", "io", "network", "apparmor", "lsm", "mount"]] | None = Field(
        default=None, description="tiers without which a sandbox does not start"
    )
    filesystem: FilesystemForm | None = None
    network: NetworkForm | None = None
    limits: LimitsForm | None = None
    syscalls: SyscallsForm | None = None
    apparmor: AppArmorForm | None = None
    seccomp: SeccompForm | None = None
    phases: PhasesForm | None = None
    detectors: DetectorsForm | None = None
    penalty: PenaltyForm | None = None
