"""A policy's artefacts as files: what would be put in force, to be read, compared and kept."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict
from typing import Any, Literal, get_args

from invigilator.profiles import apparmor, canonical, limits, network, oci, protected, seccomp
from invigilator.profiles.library import Loaded
from invigilator.profiles.paths import to_text
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox.resolver.upstream import lookup

Tier = Literal["apparmor", "seccomp", "network", "cgroup"]
TIERS: tuple[Tier, ...] = get_args(Tier)


def compile_all(loaded: Loaded, *, resolve: bool) -> dict[str, bytes]:
    """File name → content. `resolve`: turn names in network rules into addresses, else keep them."""
    policy = loaded.policy
    found = {
        "policy.json": canonical.dumps(policy.model_dump(mode="json")) + b"\n",
        "versions.json": _json(canonical.policy_versions(policy)._asdict()),
        "limits.json": _json(asdict(limits.compile(policy))),
    }
    for phase in get_args(PhaseName):
        found[f"{phase}.apparmor"] = apparmor.compile(loaded, phase).text.encode()
        found[f"seccomp-{phase}.bpf"] = seccomp.compile(policy, phase)
        found[f"seccomp-{phase}.json"] = _json(_calls(policy, phase))
        found[f"seccomp-{phase}.docker.json"] = _json(oci.profile(policy, phase))
        found[f"network-{phase}.json"] = _json(_network(policy, phase, resolve=resolve))
        found[f"paths-{phase}.json"] = _json(_paths(policy, phase))
    return found


def readable(loaded: Loaded, phase: PhaseName, tier: Tier, *, resolve: bool) -> str:
    """One tier's artefact of a phase, to be read: AppArmor's profile as it stands, all else as JSON."""
    policy = loaded.policy
    if tier == "apparmor":
        return apparmor.compile(loaded, phase).text
    made: dict[str, Any] = {
        "seccomp": lambda: _calls(policy, phase),
        "network": lambda: _network(policy, phase, resolve=resolve),
        "cgroup": lambda: _limits(policy),
    }[tier]()
    return json.dumps(made, indent=2) + "\n"


def _calls(policy: Policy, phase: PhaseName) -> dict[str, Any]:
    """What the filter refuses, by which key of the policy, and what no filter can."""
    made = seccomp.build(policy, phase)
    refused = [
        {"call": one.call, "errno": errno.errorcode[one.errno], "by": ".".join(map(str, one.where))}
        for one in made.refusals
    ]
    return {"instructions": len(made.program) // 8, "refused": refused, "not_expressed": made.unexpressed}


def _limits(policy: Policy) -> dict[str, Any]:
    made = limits.compile(policy)
    return {"limits": asdict(made), "v2": made.v2(), "v1": made.v1()}


def _network(policy: Policy, phase: PhaseName, *, resolve: bool) -> dict[str, Any]:
    if not resolve:
        return network.network_of(policy, phase).model_dump(mode="json")
    compiled = network.compile(policy, phase, lookup)
    rules, binds = (
        [rule._asdict() | {"prefix": rule.prefix.hex()} for rule in each]
        for each in (compiled.rules, compiled.binds)
    )
    return {
        "default_allow": compiled.default_allow,
        "needs_link": compiled.needs_link,
        "rules": rules,
        "default_bind": compiled.default_bind,
        "binds": binds,
    }


def _paths(policy: Policy, phase: PhaseName) -> list[dict[str, str]]:
    access = protected.class_access(policy, phase)
    return [
        {
            "path": to_text(rule.path),
            "class": rule.name,
            "read": access[rule.name][0],
            "write": access[rule.name][1],
        }
        for rule in protected.rules(policy)
    ]


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"
