"""A recording with holes teaches nothing, and says which and how many."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from invigilator.guard.errors import GuardError
from invigilator.guard.learning import refuse_loss
from invigilator.incidents.records import (
    COVERAGE_CLASSES,
    EventCounts,
    Penalty,
    PolicyRef,
    PolicyVersions,
    Report,
)


def report(
    *, lost_by: dict[str, int], state: dict[str, str] | None = None, lost: int | None = None
) -> Report:
    number = sum(lost_by.values()) if lost is None else lost
    now = datetime.now(UTC)
    return Report.model_validate(
        {
            "rollout_id": "r", "sandbox_id": "s", "backend": "process", "started_at": now, "ended_at": now,
            "policy": PolicyRef(name="p", versions=PolicyVersions(confinement="", detection="", penalty="")),
            "phases": [], "exit": None, "status": "final", "watermark": 9, "enforcement": {}, "incidents": [],
            "coverage": dict.fromkeys(COVERAGE_CLASSES, "ok") | (state or {}),
            "events": EventCounts(
                produced=9 + number, stored=9, lost=number, shipped=9, lost_by=lost_by
            ),
            "penalty": Penalty(value=0.0),
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (report(lost_by={"file/ring_full": 7, "file/other": 1}), "file: 8 events lost"),
        (report(lost_by={}, state={"network": "degraded"}), "network: not seen whole (coverage degraded)"),
        (report(lost_by={"process/ring_full": 2}), "process: 2 events lost"),
        (report(lost_by={}, lost=3), "3 events of unknown class"),
    ],
)
def test_a_hole_in_what_is_needed_is_refused(one: Report, said: str) -> None:
    with pytest.raises(GuardError) as refused:
        refuse_loss(one)
    assert said in str(refused.value)


def test_a_hole_in_what_is_not_needed_is_none() -> None:
    refuse_loss(report(lost_by={"output/ring_full": 5}, state={"output": "degraded", "denial": "disabled"}))
