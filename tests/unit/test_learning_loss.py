"""A recording with holes teaches nothing, and says which and how many."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from invigilator.ebpf.events import EVENT, EventBatch, EventClass, Flag, Kind, Phase
from invigilator.guard.errors import GuardError
from invigilator.guard.learning import recording, refuse_loss
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


def events(kind: Kind, *, flags: int = 0, phase: Phase = Phase.AGENT) -> EventBatch:
    records = np.zeros(2, EVENT)
    records["kind"], records["class"], records["phase"] = kind, EventClass.FILE, phase
    records["flags"], records["seq"] = flags, [1, 2]
    return EventBatch(records, [b""])


class OneBatch:
    """A record of some events."""

    def __init__(self, batch: EventBatch) -> None:
        self.batch = batch

    def raw_events(self, sandbox_id: str) -> Iterator[pa.Table]:
        """All of them."""
        yield pa.Table.from_batches([self.batch.to_arrow(bytes(16))])


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (events(Kind.OPEN, flags=Flag.STRING_LOST), "2 events lost their names"),
        (events(Kind.IO_URING_OP), "2 operations went through io_uring"),
        (events(Kind.OPEN), "the store has 2 of its 9 events"),
    ],
)
def test_events_that_do_not_say_all_are_refused(batch: EventBatch, said: str) -> None:
    with pytest.raises(GuardError) as refused:
        recording(cast(Any, OneBatch(batch)), report(lost_by={}))
    assert said in str(refused.value)


def test_what_the_platform_did_through_a_ring_is_no_hole() -> None:
    whole = report(lost_by={}).model_copy(
        update={"events": EventCounts(produced=2, stored=2, lost=0, shipped=2)}
    )
    assert not recording(cast(Any, OneBatch(events(Kind.IO_URING_OP, phase=Phase.SETUP))), whole).uses
