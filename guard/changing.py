"""Another policy put in force on a rollout that runs.

What the sandbox may do changes; what it is judged by stays the policy that the rollout began with. So parts
that both are made of (protected paths, the workspace, canaries) cannot change, and where the network's rules
do, the class `network` is degraded: where less is allowed than the verdict supposes an attempt may go
unnoticed; where more is, what was allowed looks forbidden, so later incidents of that class are only shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from invigilator.guard.errors import GuardError
from invigilator.guard.opening import PHASES, Watch, put_in_force, refuse_unenforced, require_tiers
from invigilator.guard.services import Services
from invigilator.incidents.records import PolicyChange
from invigilator.profiles import network
from invigilator.profiles.canonical import policy_versions
from invigilator.profiles.diff import diff
from invigilator.profiles.names import has_names
from invigilator.profiles.policy import PhaseRules, Policy
from invigilator.sandbox.base import Pinned, Sandbox
from invigilator.sandbox.changing import same_network

JUDGED = ("workspace", "submission", "hidden", "protected", "canaries")
"""Parts of `filesystem` that the verdict is made by."""


def change(services: Services, sandbox: Sandbox, watch: Watch, old: Policy, new: Policy) -> PolicyChange:
    """Put `new` in force. GuardError or SandboxError, with nothing changed, where that cannot be."""
    if parts := judged_parts(old, new):
        raise GuardError(
            f"{', '.join(parts)} decides the verdict too, and cannot change while a rollout runs",
            fix="start a new sandbox",
        )
    require_tiers(new, sandbox.enforcement())
    refuse_unenforced(new, sandbox.enforcement())

    def put(pins: Pinned) -> None:
        named = has_names(new)
        for name, phase in PHASES.items():
            rules = network.compile(new, name, sandbox.hosts.__getitem__)
            put_in_force(
                services.sensor, watch.slot, phase, rules, own=named, pins=pins.get(name, {}) if named else {}
            )

    at, changed = datetime.now(UTC), [] if same_network(old, new) else ["network"]
    tiers: dict[str, str] = {**sandbox.change(new, put)}
    version = policy_versions(new).confinement
    watch.facts.policy_changed(version, tiers)
    return PolicyChange(
        at=at,
        name=new.name,
        confinement=version,
        tiers=tiers,
        degraded=changed,
        allows_more=changed if changed and allows_more(old, new) else [],
    )


def judged_parts(old: Policy, new: Policy) -> list[str]:
    """What differs and must not."""
    found = [
        f"filesystem.{name}"
        for name in JUDGED
        if getattr(old.filesystem, name) != getattr(new.filesystem, name)
    ]
    plain = PhaseRules()
    for phase in PHASES:
        one, two = (policy.phases.get(phase, plain) for policy in (old, new))
        names = ("protected", "survivors")
        found += [f"phases.{phase}.{name}" for name in names if getattr(one, name) != getattr(two, name)]
    return [*found, *(["mode"] if old.mode != new.mode else [])]


def allows_more(old: Policy, new: Policy) -> bool:
    """Whether the new rules of the network let anything out that the old do not."""
    return any(one.effect == "possible" for one in diff(_network_alone(old), _network_alone(new)))


def _network_alone(policy: Policy) -> Policy:
    phases: Mapping[Any, PhaseRules] = {
        name: PhaseRules(network=network.network_of(policy, name)) for name in PHASES
    }
    return Policy(name="network", network=policy.network, phases=dict(phases))
