"""A policy's artefacts as files: what would be put in force, to be read, compared and kept."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, get_args

from invigilator.profiles import canonical, limits, network, protected, seccomp
from invigilator.profiles.paths import to_text
from invigilator.profiles.policy import PhaseName, Policy


def compile_all(policy: Policy, *, resolve: bool) -> dict[str, bytes]:
    """File name → content. `resolve`: turn names in network rules into addresses, else keep them."""
    found = {
        "policy.json": canonical.dumps(policy.model_dump(mode="json")) + b"\n",
        "versions.json": _json(canonical.policy_versions(policy)._asdict()),
        "limits.json": _json(asdict(limits.compile(policy))),
    }
    for phase in get_args(PhaseName):
        found[f"seccomp-{phase}.bpf"] = seccomp.compile(policy, phase)
        found[f"network-{phase}.json"] = _json(_network(policy, phase, resolve=resolve))
        found[f"paths-{phase}.json"] = _json(_paths(policy, phase))
    return found


def _network(policy: Policy, phase: PhaseName, *, resolve: bool) -> dict[str, Any]:
    if not resolve:
        return network.network_of(policy, phase).model_dump(mode="json")
    compiled = network.compile(policy, phase)
    rules = [rule._asdict() | {"prefix": rule.prefix.hex()} for rule in compiled.rules]
    return {"default_allow": compiled.default_allow, "needs_link": compiled.needs_link, "rules": rules}


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
