"""What another policy may change under a rollout that runs, and what is left of its verdict."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from invigilator.ebpf.sensor import Loss
from invigilator.guard.changing import judged_parts
from invigilator.guard.order import SandboxOrder
from invigilator.guard.progress import Progress
from invigilator.guard.verdict import Course, Evidence, judge
from invigilator.profiles import library
from invigilator.profiles.policy import EgressRule, Network, Policy, Syscalls

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


def verdict(*later: Policy) -> Any:
    evidence = Evidence(
        incidents=[], final=True, loss=Loss(produced=1, lost=0), stored=1, shipped=1, watermark=1
    )
    order = SandboxOrder(policy=BASE, rollout_id="r")
    return judge(order, Course(str(uuid.uuid4()), Progress(), {}, [], later), evidence)


def test_what_a_later_policy_lets_go_round_the_sensor_is_no_whole_record() -> None:
    assert set(verdict().coverage.values()) == {"ok", "disabled"}
    loose = BASE.model_copy(update={"syscalls": Syscalls(io_uring="allow")})
    report = verdict(loose, BASE)
    assert report.coverage["file"] == report.coverage["network"] == "degraded"
    assert (report.status, report.penalty.value) == ("partial", None)
