"""Another policy put in force on a rollout that runs.

What the sandbox may do changes, and what it did is judged by the policy that was in force then; the record
says since when each was. What is judged at all, and what it costs, stays the matter of the policy that the
rollout began with. So parts that both are made of (protected paths, the workspace, canaries) cannot change.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from invigilator.guard.auditing import leave
from invigilator.guard.errors import GuardError
from invigilator.guard.opening import PHASES, Watch, put_in_force, refuse_unenforced, require_tiers
from invigilator.guard.services import Services
from invigilator.incidents.records import PolicyChange, PolicyVersions
from invigilator.profiles import network
from invigilator.profiles.canonical import policy_versions
from invigilator.profiles.names import has_names
from invigilator.profiles.policy import PhaseRules, Policy
from invigilator.sandbox.base import Pinned, Sandbox

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

    versions = policy_versions(new)
    leave(services.home, "policy.apply", str(sandbox.spec.sandbox_id), told(old), told(new))
    watch.later[versions.confinement] = new
    if services.denials is not None:
        alone = not any(sandbox.survivors(name) for name in PHASES)
        services.denials.change(watch.slot, new, time.clock_gettime_ns(time.CLOCK_BOOTTIME), alone=alone)

    def put(pins: Pinned) -> None:
        named = has_names(new)
        watch.facts.policy_changes(versions.confinement)
        for name, phase in PHASES.items():
            rules = network.compile(new, name, sandbox.hosts.__getitem__)
            put_in_force(
                services.sensor, watch.slot, phase, rules, own=named, pins=pins.get(name, {}) if named else {}
            )

    at = datetime.now(UTC)
    tiers: dict[str, str] = {**sandbox.change(new, put)}
    watch.facts.policy_changed(versions.confinement, tiers)
    return PolicyChange(
        at=at,
        name=new.name,
        confinement=versions.confinement,
        tiers=tiers,
        versions=PolicyVersions(**versions._asdict()),
    )


def told(policy: Policy) -> dict[str, Any]:
    """A policy as the audit keeps it."""
    return {
        "name": policy.name,
        "versions": policy_versions(policy)._asdict(),
        "policy": policy.model_dump(mode="json"),
    }


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
