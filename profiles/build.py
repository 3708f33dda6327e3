"""Checked form → Policy: units are parsed, defaults filled in, each phase made whole."""

from __future__ import annotations

from typing import Any

from invigilator.profiles.form import (
    ClassForm,
    FilesystemForm,
    LimitsForm,
    NetworkForm,
    PhaseForm,
    PolicyForm,
    SyscallsForm,
)
from invigilator.profiles.policy import (
    CLASS_DEFAULTS,
    UNKNOWN_CLASS_DEFAULT,
    AppArmorRules,
    BindRule,
    ClassAccess,
    Detectors,
    EgressRule,
    Filesystem,
    IoLimits,
    Limits,
    Network,
    PenaltyRules,
    PhaseName,
    PhaseRules,
    Policy,
    ProtectedClass,
    SeccompRules,
    Syscalls,
)

_IO = {
    "read": "read_bytes_per_s",
    "write": "write_bytes_per_s",
    "read_ops": "read_ops_per_s",
    "write_ops": "write_ops_per_s",
}
_UNITS = {"memory": "memory_bytes", "disk": "disk_bytes", "output": "output_bytes", "ttl": "ttl_s"}


def to_policy(form: PolicyForm, weights: dict[str, float]) -> Policy:
    """The policy of a form; `weights` are the library's, which the form's override."""
    network = _network(form.network, Network())
    syscalls = _syscalls(form.syscalls, Syscalls())
    files = _filesystem(form.filesystem or FilesystemForm())
    said = form.model_dump(include={"mode", "require"}, exclude_none=True)
    return Policy(
        name=form.name,
        filesystem=files,
        network=network,
        limits=_limits(form.limits or LimitsForm()),
        syscalls=syscalls,
        apparmor=AppArmorRules(**_said(form.apparmor)),
        seccomp=SeccompRules(**_said(form.seccomp)),
        phases=_phases(form, network, syscalls, files),
        detectors=Detectors(**_said(form.detectors)),
        penalty=_penalty(form, weights),
        **said,
    )


def _said(form: Any) -> dict[str, Any]:
    return form.model_dump(exclude_none=True) if form is not None else {}


def _filesystem(form: FilesystemForm) -> Filesystem:
    said = _said(form)
    said["protected"] = {name: _class(name, item) for name, item in (form.protected or {}).items()}
    return Filesystem(**said)


def _class(name: str, form: ClassForm) -> ProtectedClass:
    read, write = CLASS_DEFAULTS.get(name, UNKNOWN_CLASS_DEFAULT)
    return ProtectedClass(paths=form.paths, read=form.read or read, write=form.write or write)


def _network(form: NetworkForm | None, base: Network) -> Network:
    if form is None:
        return base
    egress = base.egress if form.egress is None else [EgressRule(**rule.model_dump()) for rule in form.egress]
    bind = base.bind if form.bind is None else [BindRule(**rule.model_dump()) for rule in form.bind]
    return Network(
        default_action=form.default_action or base.default_action,
        egress=egress,
        default_bind=form.default_bind or base.default_bind,
        bind=bind,
    )


def _syscalls(form: SyscallsForm | None, base: Syscalls) -> Syscalls:
    return base if form is None else base.model_copy(update=_said(form))


def _limits(form: LimitsForm) -> Limits:
    said = _said(form)
    io = {_IO[key]: value for key, value in said.pop("io", {}).items()}
    return Limits(io=IoLimits(**io), **{_UNITS.get(key, key): value for key, value in said.items()})


def _phases(
    form: PolicyForm, network: Network, syscalls: Syscalls, files: Filesystem
) -> dict[PhaseName, PhaseRules]:
    names: tuple[PhaseName, ...] = ("setup", "agent", "verify")
    said = {name: getattr(form.phases, name) for name in names} if form.phases else {}
    return {
        name: _phase(name, item, network, syscalls, files) for name, item in said.items() if item is not None
    }


def _phase(
    name: PhaseName, form: PhaseForm, network: Network, syscalls: Syscalls, files: Filesystem
) -> PhaseRules:
    return PhaseRules(
        network=_network(form.network, network) if form.network else None,
        syscalls=_syscalls(form.syscalls, syscalls) if form.syscalls else None,
        apparmor=AppArmorRules(**_said(form.apparmor)) if form.apparmor else None,
        seccomp=SeccompRules(**_said(form.seccomp)) if form.seccomp else None,
        protected=_phase_access(name, form, files),
        survivors=form.survivors or "end",
    )


def _phase_access(name: PhaseName, form: PhaseForm, files: Filesystem) -> dict[str, ClassAccess]:
    """Access that a phase leaves unsaid is the class's own for the agent, and `allow` for the platform."""
    found = {}
    for kind, access in (form.protected or {}).items():
        base = files.protected.get(kind) if name == "agent" else None
        found[kind] = ClassAccess(
            read=access.read or (base.read if base else "allow"),
            write=access.write or (base.write if base else "allow"),
        )
    return found


def _penalty(form: PolicyForm, weights: dict[str, float]) -> PenaltyRules:
    said = _said(form.penalty)
    if "reward_range" in said:
        low, high = said["reward_range"]
        said["reward_range"] = (low, high)
    said["weights"] = {**weights, **said.get("weights", {})}
    return PenaltyRules(**said)
