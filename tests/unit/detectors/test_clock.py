"""Wall time is told, never judged by: whatever a clock says or jumps to, the verdict is the same."""

from __future__ import annotations

import pytest
from build import OFFSET_NS, SANDBOX, Story, agent, policy

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
