"""A rollout's sandbox made, watched and armed, before its first command."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from invigilator.detectors.engine import Engine
from invigilator.ebpf.events import Phase
from invigilator.ebpf.network import NetRule
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.canary import Canary
from invigilator.guard.errors import GuardError
from invigilator.guard.facts import Recorder
from invigilator.guard.gitfacts import future_commits, future_objects
from invigilator.guard.naming import name_events
from invigilator.guard.order import SandboxOrder
from invigilator.guard.pipeline import Watched
from invigilator.guard.services import Services
from invigilator.incidents.stamp import Origin, wall_offset_ns
from invigilator.profiles import network
from invigilator.profiles.access import only_apparmor
from invigilator.profiles.names import has_names
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox.base import Backend, CanaryFile, Mount, Sandbox, SandboxSpec
from invigilator.sandbox.resolver.upstream import lookup

NO_PINS: Mapping[bytes, Sequence[network.NetRule]] = {}
PHASES: Mapping[PhaseName, Phase] = {"setup": Phase.SETUP, "agent": Phase.AGENT, "verify": Phase.VERIFY}


class RolloutError(GuardError):
    """The rollout cannot do what was asked; the sandbox is not to blame."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A sandbox as the sensor and the pipeline know it. `later`: by confinement version, the policies put in
    force on it while it runs, each known here before the record speaks of it."""

    slot: int
    watched: Watched
    facts: Recorder
    later: dict[str, Policy] = field(default_factory=dict)

    def end(self, services: Services) -> None:
        """Watch it no more."""
        services.pipeline.detach(self.slot)
        if services.denials is not None:
            services.denials.forget(self.slot)
        services.sensor.unregister(self.slot)


def prepare(
    services: Services, order: SandboxOrder, sandbox_id: uuid.UUID, canaries: Sequence[Canary]
) -> Sandbox:
    """The order's sandbox, prepared: nothing runs in it yet."""
    _require_fitting(order)
    return _backend(services, order.backend).prepare(
        SandboxSpec(
            sandbox_id=sandbox_id,
            policy=order.policy,
            workspace=Path(order.workspace) if order.workspace else None,
            root=Path(order.root) if order.root else None,
            image=order.image,
            owner_uid=order.owner_uid,
            owner_gid=order.owner_gid,
            canaries=[CanaryFile(one.path, one.content) for one in canaries],
            environment=order.environment,
        )
    )


def watch(services: Services, order: SandboxOrder, sandbox: Sandbox) -> Watch:
    """Tell sensor and pipeline of a prepared sandbox, before any process is in it."""
    offset, sandbox_id = wall_offset_ns(), sandbox.spec.sandbox_id
    later: dict[str, Policy] = {}
    engine = Engine(order.policy, sandbox_id, offset, later)
    origin = Origin(order.run_id or "", order.rollout_id, order.attempt, offset)
    cgroups = {number: PHASES[phase] for phase, number in sandbox.cgroups().items()}
    slot = services.sensor.register(sandbox_id, cgroups)
    watched = services.pipeline.attach(slot, sandbox_id, engine, origin)
    if services.denials is not None:
        services.denials.watch(slot, cgroups, order.policy)
    return Watch(slot, watched, Recorder(services.sensor, slot, order.policy), later)


def arm(
    services: Services, order: SandboxOrder, sandbox: Sandbox, watch: Watch, canaries: Sequence[Canary]
) -> None:
    """Of a started sandbox: require what the policy does, put network rules in force, begin the record."""
    sensor, policy = services.sensor, order.policy
    require_tiers(policy, sandbox.enforcement())
    refuse_unenforced(policy, sandbox.enforcement())

    def tell_mounts(mounts: Sequence[Mount]) -> None:
        sensor.set_mounts(watch.slot, [(one.dev, one.fs_root, one.mount_point) for one in mounts])

    tell_mounts(sandbox.mounts())
    sandbox.on_mounts = tell_mounts
    for name, phase in PHASES.items():
        rules = network.compile(policy, name, lambda asked: _addresses(sandbox, asked))
        put_in_force(sensor, watch.slot, phase, rules, own=has_names(policy))
    sandbox.on_names(name_events(sensor, watch.slot, PHASES))
    sensor.arm(watch.slot)
    watch.facts.canaries_planted(canaries, sandbox.identity)
    if order.workspace:
        commits = future_commits(Path(order.workspace))
        watch.facts.future_commits(commits, policy.filesystem.workspace[0])
        objects = future_objects(Path(order.workspace), commits)
        watch.facts.future_objects(objects, policy.filesystem.workspace[0])


def put_in_force(
    sensor: Sensor,
    slot: int,
    phase: Phase,
    rules: network.NetworkRules,
    *,
    own: bool = False,
    pins: Mapping[bytes, Sequence[network.NetRule]] = NO_PINS,
) -> None:
    """Compiled rules of the network, in the kernel. `own`: shared with no other sandbox, so that addresses
    can be pinned; `pins` are from the beginning."""
    sensor.set_network(
        slot,
        phase,
        rules.default_allow,
        [NetRule(*rule) for rule in rules.rules],
        default_bind=rules.default_bind,
        binds=[NetRule(*rule) for rule in rules.binds],
        own=own,
        pins={address: [NetRule(*rule) for rule in some] for address, some in pins.items()},
    )


def _addresses(sandbox: Sandbox, name: str) -> Sequence[str]:
    """What a name led to when the sandbox was made: name servers may answer otherwise by now."""
    known = sandbox.hosts.get(name)
    return lookup(name) if known is None else known


def _backend(services: Services, name: str) -> Backend:
    if (backend := services.backends.get(name)) is None:
        names = ", ".join(sorted(services.backends))
        raise RolloutError(f"there is no backend {name!r} here", fix=f"use one of: {names}")
    return backend


def _require_fitting(order: SandboxOrder) -> None:
    """A container has an image, and nothing else has."""
    if order.backend == "container" and order.root is not None:
        raise RolloutError("a container's root is its image's", fix="leave out --root")
    if order.backend == "container" and order.image is None:
        raise RolloutError("the container backend needs an image", fix="give --image IMAGE")
    if order.backend != "container" and order.image is not None:
        raise RolloutError(f"backend {order.backend} takes no image", fix="give --backend container")


def refuse_unenforced(policy: Policy, enforcement: Mapping[str, str]) -> None:
    """No sandbox under a policy that says denied where nothing denies."""
    if policy.mode != "enforce" or enforcement.get("apparmor") == "enforce":
        return
    for _, what in only_apparmor(policy):
        raise RolloutError(
            f"policy {policy.name}: {what} denies what only AppArmor can, and it is not in force here",
            fix="write `watch` there or take it out, or `mode: observe`; `guard doctor` says why",
        )


def require_tiers(policy: Policy, enforcement: Mapping[str, str]) -> None:
    """Of an observing policy a tier is to be there, though it refuses nothing."""
    observing = policy.mode == "observe"
    there = {
        tier for tier, state in enforcement.items() if state == "enforce" or (observing and state != "absent")
    }
    missing = [tier for tier in policy.require if tier not in there]
    if missing:
        raise RolloutError(
            f"policy {policy.name} requires {', '.join(missing)}, which is not in force here",
            fix="`guard doctor` says why; or take it out of the policy's `require`",
        )
