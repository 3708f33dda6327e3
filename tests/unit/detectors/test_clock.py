"""Wall time is told, never judged by: whatever a clock says or jumps to, the verdict is the same."""

from __future__ import annotations

import pytest
from build import OFFSET_NS, SANDBOX, Story, agent, judge_batch, policy

from invigilator.detectors.engine import Engine
from invigilator.guard import penalty
from invigilator.incidents.records import Incident
from invigilator.profiles.policy import Policy

YEAR_NS = 365 * 86_400 * 1_000_000_000


def story() -> Story:
    """Misbehaviour of several kinds, of acts and of rates."""
    told = agent().write("/usr/bin/bash").write("/workspace/tests/test_a.py").open("/grader/key", "r")
    for number in range(40):
        told.connect(f"10.0.0.{number}", 22, error="ECONNREFUSED")
    return told


def judged(offset_ns: int, rules: Policy) -> list[Incident]:
    """The incidents where wall time minus boot time was `offset_ns`."""
    engine = Engine(rules, SANDBOX, offset_ns)
    engine.feed(story().batch())
    engine.finish()
    return penalty.marked(engine.incidents(), rules)


@pytest.mark.parametrize("jump_ns", [-YEAR_NS, -1, 1, 3_600_000_000_000, 20 * YEAR_NS])
def test_a_clock_that_jumped_changes_no_verdict(jump_ns: int) -> None:
    rules = policy()
    before, after = judged(OFFSET_NS, rules), judged(OFFSET_NS + jump_ns, rules)
    assert len({one.kind for one in before}) >= 3
    assert [timeless(one) for one in before] == [timeless(one) for one in after]


def timeless(one: Incident) -> dict[str, object]:
    """An incident without what says when."""
    told = one.model_dump(exclude={"first_at", "last_at"})
    told["evidence"] = [
        {name: value for name, value in fact.items() if name != "at"} for fact in one.evidence
    ]
    return told


@pytest.mark.parametrize("times_as_slow", [10, 200])
def test_a_slow_machine_changes_no_verdict(times_as_slow: int) -> None:
    """Windows are of the events' own time; within them it does not matter how long what was tried took."""
    fast, slow = story(), story()
    for row in slow.rows:
        row["time_ns"] = row["time_ns"] + (row["seq"] - 1) * times_as_slow * 1_000_000
    rules = policy()
    verdicts = [
        penalty.marked(judge_batch(told.batch(), rules, cuts), rules)
        for told in (fast, slow)
        for cuts in ((), (7, 20), tuple(range(1, len(told.rows))))
    ]
    assert [timeless(one) for one in verdicts[0]]
    for verdict in verdicts[1:]:
        assert [timeless(one) for one in verdict] == [timeless(one) for one in verdicts[0]]


def test_no_clock_is_read_while_events_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> float:
        raise AssertionError("a verdict asked for the time")

    batch, rules = story().batch(), policy()
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "clock_gettime_ns"):
        monkeypatch.setattr(f"time.{name}", stopped)
    try:
        found = judge_batch(batch, rules)
    finally:
        monkeypatch.undo()
    assert len({one.kind for one in found}) >= 3
