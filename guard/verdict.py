"""What a rollout's record amounts to: whether it is final and whole, the penalty, the report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from invigilator.detectors.base import Detector, registry
from invigilator.ebpf.sensor import Loss
from invigilator.guard import penalty
from invigilator.guard.failed import policy_ref
from invigilator.guard.order import SandboxOrder
from invigilator.guard.progress import Progress
from invigilator.incidents.records import (
    COVERAGE_CLASSES,
    CoverageState,
    EnforcementState,
    EventCounts,
    Incident,
    PolicyChange,
    Report,
    Status,
)
from invigilator.profiles.policy import Policy


@dataclass(frozen=True, slots=True)
class Course:
    """How a rollout went, as its report tells it."""

    sandbox_id: str
    progress: Progress
    enforcement: Mapping[str, str]
    changes: Sequence[PolicyChange] = ()
    later: Sequence[Policy] = ()
    """Policies of the changes."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a sandbox when it is judged. `final`: its cgroup is empty and every ring has been read
    past what it had produced by then. `unjudged`: why its events could not be judged, if so.
    `denial`: whether all refusals are in the record. `holes`: classes of which not all was watched."""

    incidents: Sequence[Incident]
    final: bool
    loss: Loss
    stored: int
    shipped: int
    watermark: int
    unjudged: str | None = None
    denial: CoverageState = "disabled"
    holes: Collection[str] = ()


def judge(order: SandboxOrder, course: Course, evidence: Evidence) -> Report:
    """The verdict on a rollout."""
    states = coverage((order.policy, *course.later), evidence)
    incidents = evidence.incidents
    failure = course.progress.failure or evidence.unjudged
    status: Status = (
        "failed" if failure else "partial" if penalty.is_partial(order.policy, states) else "final"
    )
    loss = evidence.loss
    return Report(
        run_id=order.run_id,
        rollout_id=order.rollout_id,
        attempt=order.attempt,
        sandbox_id=course.sandbox_id,
        backend=order.backend,
        labels=order.labels,
        policy=policy_ref(order),
        policy_changes=list(course.changes),
        started_at=course.progress.started_at,
        ended_at=datetime.now(UTC),
        phases=list(course.progress.phases),
        exit=course.progress.agent_exit,
        failure=failure,
        status=status,
        watermark=evidence.watermark,
        enforcement={tier: cast(EnforcementState, state) for tier, state in course.enforcement.items()},
        coverage=states,
        events=EventCounts(
            produced=loss.produced,
            stored=evidence.stored,
            lost=loss.lost,
            shipped=evidence.shipped,
            lost_by={f"{name}/{reason}": lost for (name, reason), lost in loss.lost_by.items() if lost},
        ),
        incidents=penalty.marked(incidents, order.policy),
        penalty=penalty.compute(incidents, order.policy, states, status),
    )


def coverage(policies: Sequence[Policy], evidence: Evidence) -> dict[str, CoverageState]:
    """Per class, whether all of its events are in the record.

    A class that lost events is `degraded`; so are files and network where a policy allowed, in any phase,
    io_uring or a foreign ABI, which go round parts of the system call hook, and output, which io_uring may
    write. Losses that nothing is known of degrade all.
    """
    states: dict[str, CoverageState] = dict.fromkeys(COVERAGE_CLASSES, "ok")
    states["denial"] = evidence.denial
    everywhere = [policy.syscalls for policy in policies]
    everywhere += [rules.syscalls for one in policies for rules in one.phases.values() if rules.syscalls]
    if any("allow" in (calls.io_uring, calls.foreign_abi) for calls in everywhere):
        states |= {"file": "degraded", "network": "degraded"}
    if any(calls.io_uring == "allow" for calls in everywhere):
        states["output"] = "degraded"
    for (name, _), lost in evidence.loss.lost_by.items():
        if lost and name in states:
            states[name] = "degraded"
        elif lost:
            states |= _all(states, "degraded")
    states |= dict.fromkeys(evidence.holes, "degraded")
    if evidence.loss.unattributed:
        states |= _all(states, "degraded")
    if not evidence.final or evidence.unjudged:
        states |= _all(states, "failed")
    return states


def enabled(policy: Policy) -> dict[str, type[Detector]]:
    """The detectors that run under a policy, by id."""
    return {name: found for name, found in registry().items() if name not in policy.detectors.disabled}


def lost_by_class(loss: Loss) -> dict[str, int]:
    """Events lost, by the name of their class."""
    summed: dict[str, int] = {}
    for (name, _), lost in loss.lost_by.items():
        summed[name] = summed.get(name, 0) + lost
    return summed


def _all(states: Mapping[str, CoverageState], state: CoverageState) -> dict[str, CoverageState]:
    return {name: state for name, present in states.items() if present not in ("disabled", "failed")}
