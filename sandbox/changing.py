"""Another policy put in force on a sandbox that runs: what the kernel lets be changed, and what not."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from invigilator.profiles import limits as limit_compiler
from invigilator.profiles import network as rules_of
from invigilator.profiles import seccomp
from invigilator.profiles.apparmor import Layout
from invigilator.profiles.names import has_names
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox import apparmor, network
from invigilator.sandbox.base import Became, SandboxError
from invigilator.sandbox.cgroups import SandboxCgroups
from invigilator.sandbox.machinery import Machinery

PHASES: tuple[PhaseName, ...] = ("setup", "agent", "verify")


@dataclass(frozen=True, slots=True)
class Running:
    """A sandbox that runs, under `policy`."""

    shared: Machinery
    groups: SandboxCgroups
    link: network.Link | None
    needs: network.Needs
    profiles: apparmor.Phases
    layout: Layout | None
    policy: Policy


@dataclass(frozen=True, slots=True)
class Changed:
    """What a sandbox has from now on. Profiles that it had before and has no more, it still holds."""

    tiers: Mapping[str, Became]
    needs: network.Needs
    profiles: apparmor.Phases


def change(running: Running, policy: Policy) -> Changed:
    """Put `policy` in force. `SandboxError`, with nothing changed, where its network cannot be had."""
    needs = _needs(running, policy)
    tiers: dict[str, Became] = {"seccomp": _seccomp(running.policy, policy), "mount": "unchanged"}
    profiles = running.profiles
    if profiles:
        layout = running.layout
        tiers["apparmor"], profiles = running.shared.profiles.change(profiles, running.policy, policy, layout)
    if needs is not running.needs and running.link is not None:
        running.shared.links.change(running.link, needs)
    tiers["cgroup"] = _cgroup(running, policy)
    return Changed(tiers, needs, profiles)


def same_network(old: Policy, new: Policy) -> bool:
    """Whether the network's rules are the same in every phase."""
    return old.mode == new.mode and all(
        rules_of.network_of(old, phase) == rules_of.network_of(new, phase) for phase in PHASES
    )


def _needs(running: Running, policy: Policy) -> network.Needs:
    if same_network(running.policy, policy):
        return running.needs
    if has_names(running.policy) or has_names(policy):
        raise SandboxError(
            "rules by name keep their addresses for a sandbox's life: start a new one, or write addresses"
        )
    needs = network.needs(policy)
    if needs.link and running.link is None:
        raise SandboxError("the sandbox was made without a link to the outside: start a new one")
    return needs


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
