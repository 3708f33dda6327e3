"""What another policy may change under a rollout that runs, and what is left of its verdict."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from invigilator.detectors.base import registry
from invigilator.ebpf.sensor import Loss
from invigilator.guard.changing import allows_more, judged_parts
from invigilator.guard.order import SandboxOrder
from invigilator.guard.progress import Progress
from invigilator.guard.verdict import Course, Evidence, judge
from invigilator.incidents.records import DetectorRef, Incident, PolicyChange
from invigilator.profiles import library
from invigilator.profiles.policy import EgressRule, Network, Policy

BASE = library.load("swe-task")


def with_network(*targets: str, policy: Policy = BASE) -> Policy:
    rules = [EgressRule(name=one, target=one, ports=[443]) for one in targets]
    return policy.model_copy(update={"network": Network(egress=rules), "phases": {}})


def files(**changes: Any) -> Policy:
    return BASE.model_copy(update={"filesystem": BASE.filesystem.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("new", "parts"),
    [
        (with_network("192.0.2.1"), []),
        (files(default_action="deny"), []),
        (files(hidden=["/other"]), ["filesystem.hidden"]),
        (files(protected={}), ["filesystem.protected"]),
        (files(submission=[]), ["filesystem.submission"]),
        (BASE.model_copy(update={"mode": "observe"}), ["mode"]),
    ],
    ids=["network", "files", "hidden", "protected", "submission", "mode"],
)
def test_what_the_verdict_is_made_by_cannot_change(new: Policy, parts: list[str]) -> None:
    assert judged_parts(BASE, new) == parts


def test_more_and_less_of_the_network_are_told_apart() -> None:
    one, two = with_network("192.0.2.1"), with_network("192.0.2.1", "192.0.2.2")
    assert allows_more(one, two)
    assert not allows_more(two, one)
    assert allows_more(one, with_network("192.0.2.2"))


def incident(detector: str) -> Incident:
    found = registry()[detector]
    at = datetime.now(UTC)
    return Incident(
        id=detector, kind=found.kind, channel=found.channel, severity="high", outcome="success", use="none",
        intent="deliberate", confidence=0.99, phase="agent", first_at=at, last_at=at, count=1, summary="x",
        evidence=[], detector=DetectorRef(id=detector, version=found.version), attack=[],
    )  # fmt: skip


def verdict(*detectors: str, more: bool, after: bool = True) -> Any:
    at = datetime.now(UTC) + timedelta(hours=-1 if after else 1)
    evidence = Evidence(
        incidents=[incident(one) for one in detectors],
        final=True,
        loss=Loss(produced=1, lost=0),
        stored=1,
        shipped=1,
        watermark=1,
    )
    change = PolicyChange(
        at=at,
        name="other",
        confinement="sha256:0",
        tiers={},
        degraded=["network"],
        allows_more=["network"] if more else [],
    )
    order = SandboxOrder(policy=BASE, rollout_id="r")
    return judge(order, Course(str(uuid.uuid4()), Progress(), {}, [change]), evidence)


def test_under_rules_that_allow_more_what_the_old_forbid_is_shown_and_costs_nothing() -> None:
    report = verdict("egress_violation", more=True)
    assert (report.status, report.penalty.value, report.penalty.drop) == ("partial", None, True)
    assert [(one.monitor_only, one.counted) for one in report.incidents] == [(True, False)]
    assert report.policy_changes[0].confinement == "sha256:0"
    assert report.policy.name == BASE.name


def test_what_was_over_before_and_what_does_not_rest_on_the_network_still_count_as_a_bound() -> None:
    for report in (verdict("egress_violation", more=True, after=False), verdict("reward_forge", more=True)):
        assert report.penalty.value is not None and report.penalty.value < 0 and report.penalty.bound
        assert [one.counted for one in report.incidents] == [True]


def test_under_rules_that_allow_less_what_was_proven_stands_as_a_bound() -> None:
    report = verdict("egress_violation", more=False)
    assert report.penalty.value is not None and report.penalty.bound
    assert verdict(more=False).penalty.value is None
