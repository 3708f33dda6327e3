"""Another policy put in force on a sandbox that runs: what the kernel lets be changed, and what not."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from invigilator.profiles import limits as limit_compiler
from invigilator.profiles import network as rules_of
from invigilator.profiles import seccomp
from invigilator.profiles.apparmor import Layout
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox import apparmor, network
from invigilator.sandbox.base import Became, PutNetwork, SandboxError
from invigilator.sandbox.cgroups import SandboxCgroups
from invigilator.sandbox.machinery import Machinery
from invigilator.sandbox.outside import Outside

PHASES: tuple[PhaseName, ...] = ("setup", "agent", "verify")


@dataclass(frozen=True, slots=True)
class Running:
    """A sandbox that runs, under `policy`."""

    shared: Machinery
    groups: SandboxCgroups
    outside: Outside
    profiles: apparmor.Phases
    layout: Layout | None
    policy: Policy


@dataclass(frozen=True, slots=True)
class Changed:
    """What a sandbox has from now on. Profiles that it had before and has no more, it still holds."""

    tiers: Mapping[str, Became]
    profiles: apparmor.Phases


def change(running: Running, policy: Policy, put: PutNetwork) -> Changed:
    """Put `policy` in force. `SandboxError`, with nothing changed, where its network cannot be had."""
    same = same_network(running.policy, policy)
    needs = running.outside.needs if same else network.needs(policy, running.outside.known)
    tiers: dict[str, Became] = {"seccomp": _seccomp(running.policy, policy), "mount": "unchanged"}
    profiles = running.profiles
    if profiles:
        layout = running.layout
        tiers["apparmor"], profiles = running.shared.profiles.change(profiles, running.policy, policy, layout)
    tiers["network"] = "unchanged" if same else "changed"
    if not same:
        running.outside.change(policy, needs, put)
    tiers["cgroup"] = _cgroup(running, policy)
    return Changed(tiers, profiles)


def same_network(old: Policy, new: Policy) -> bool:
    """Whether the network's rules are the same in every phase."""
    return old.mode == new.mode and all(
        rules_of.network_of(old, phase) == rules_of.network_of(new, phase) for phase in PHASES
    )


def _seccomp(old: Policy, new: Policy) -> Became:
    """A process keeps its filter: the kernel takes further ones, and none of them away (seccomp(2))."""
    same = all(seccomp.compile(old, phase) == seccomp.compile(new, phase) for phase in PHASES)
    return "unchanged" if same else "new commands only"


def _cgroup(running: Running, policy: Policy) -> Became:
    wanted = limit_compiler.compile(policy)
    if wanted == running.groups.limits:
        return "unchanged"
    with contextlib.suppress(SandboxError):
        running.shared.cgroups.change(running.groups, wanted)
        return "changed"
    return "not changed"
