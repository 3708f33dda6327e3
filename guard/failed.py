"""The report on a rollout that the guard itself failed: no verdict, and never a reward of 0."""

from __future__ import annotations

import functools
from datetime import UTC, datetime

from invigilator.guard.order import SandboxOrder
from invigilator.incidents.records import (
    COVERAGE_CLASSES,
    ENFORCEMENT_TIERS,
    EventCounts,
    Penalty,
    PolicyRef,
    PolicyVersions,
    Report,
)
from invigilator.profiles.canonical import policy_versions
from invigilator.profiles.policy import Policy


def policy_ref(order: SandboxOrder) -> PolicyRef:
    """The order's policy as records name it."""
    return PolicyRef(name=order.policy.name, versions=_versions(order.policy.model_dump_json()))


@functools.lru_cache(maxsize=256)
def _versions(policy: str) -> PolicyVersions:
    """Of a policy as JSON: the rollouts of a run, which share one, each bring their own copy."""
    return PolicyVersions(**policy_versions(Policy.model_validate_json(policy))._asdict())


def failed_report(
    order: SandboxOrder,
    failure: str,
    *,
    sandbox_id: str = "",
    started_at: datetime | None = None,
    revision: int = 1,
) -> Report:
    """A report that says only that, and why, the guard failed. Nothing is known of the agent's doings."""
    now = datetime.now(UTC)
    return Report(
        run_id=order.run_id,
        rollout_id=order.rollout_id,
        attempt=order.attempt,
        sandbox_id=sandbox_id,
        backend=order.backend,
        labels=order.labels,
        policy=policy_ref(order),
        started_at=started_at or now,
        ended_at=now,
        phases=[],
        exit=None,
        failure=failure,
        status="failed",
        watermark=0,
        enforcement=dict.fromkeys(ENFORCEMENT_TIERS, "absent"),
        coverage=dict.fromkeys(COVERAGE_CLASSES, "failed"),
        events=EventCounts(produced=0, stored=0, lost=0, shipped=0),
        incidents=[],
        penalty=Penalty(value=None, drop=True, revision=revision),
    )
