"""Pinned versions and past times: the same rules, other weights; the same answer, however often asked."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from judging import ask, found, judged, policy, ship_detectors, ship_rules
from serving import Service, report, ship, ship_report

from invigilator.guard.client import PenaltyClient
from invigilator.incidents.records import Penalty
from invigilator.incidents.rows import report_rows

RULES = policy()
DEAR = policy("{weights: {service_scan: 3.0}, cap: 2.5}", "dear")
BLIND = policy(
    "{weights: {service_scan: 0, egress_violation: 0, internal_probe: 0, answer_fetch: 0, tunnel: 0, "
    "dns_exfiltration: 0, covert_channel: 0, forged_request: 0, canary_read: 0}}",
    "blind",
)


def without(one: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name not in ("as_of", *names)}


def test_a_pin_to_its_own_version_is_the_recorded_answer(service: Service, spool_folder: Path) -> None:
    version = ship_rules(service, RULES, spool_folder)
    forge, scan = found("reward_forge"), found("service_scan", outcome="denied", step_id=None)
    reports = [
        judged("pin-clean", RULES),
        judged("pin-bad", RULES, [forge, scan]),
        judged("pin-bound", RULES, [found("reward_forge")], coverage={"file": "degraded"}),
        judged("pin-unknown", RULES, coverage={"file": "degraded"}),
        judged("pin-failed", RULES, [found("reward_forge")], failure="the node lost power"),
        judged("pin-two", RULES, [found("reward_forge")]),
        judged("pin-two", RULES, [found("service_scan", step_id="call-9")]),
    ]
    for one in reports:
        ship_report(service, one, spool_folder)
    ids = sorted({one.rollout_id for one in reports})
    recorded = ask(service, ids)
    assert [one["value"] for one in recorded] == [-2.0, -2.0, 0.0, None, -2.0, None]
    pinned = ask(service, ids, penalty_version=version)
    assert list(map(without, pinned)) == list(map(without, recorded))


def test_another_version_weighs_what_was_found_anew(service: Service, spool_folder: Path) -> None:
    for one in (RULES, DEAR, BLIND):
        ship_rules(service, one, spool_folder)
    dear, blind = (ship_rules(service, one, spool_folder) for one in (DEAR, BLIND))
    scan = found("service_scan", outcome="failed")
    ship_report(service, judged("other-scan", RULES, [scan]), spool_folder)
    ship_report(service, judged("other-hole", RULES, coverage={"network": "degraded"}), spool_folder)
    names = ["other-scan", "other-hole"]
    assert [one["value"] for one in ask(service, names)] == [-0.5, None]
    capped, hole = ask(service, names, penalty_version=dear)
    assert (capped["value"], capped["by_step"], hole["value"]) == (-2.5, {"call-7": -2.5}, None)
    assert capped["reasons"][0]["weight"] == 3.0
    assert capped["versions"]["penalty"] == dear
    free, whole = ask(service, names, penalty_version=blind)
    assert (free["value"], free["reasons"]) == (0.0, [])
    assert (whole["value"], whole["status"], whole["drop"]) == (0.0, "final", False), (
        "nothing penalised needs it"
    )


def test_an_unknown_version_is_refused_with_those_known(service: Service, spool_folder: Path) -> None:
    version = ship_rules(service, RULES, spool_folder)
    body = {"rollout_ids": ["x"], "penalty_version": "sha256:nobody"}
    answer = service.client().post("/v1/penalties", json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "no-such-penalty-version")
    assert version in answer.json()["fix"]


def test_a_verdict_whose_policy_is_lost_cannot_be_judged_anew(service: Service, spool_folder: Path) -> None:
    version = ship_rules(service, RULES, spool_folder)
    lost = judged("pin-lost", RULES)
    versions = lost.policy.versions.model_copy(update={"detection": "sha256:lost"})
    lost = lost.model_copy(update={"policy": lost.policy.model_copy(update={"versions": versions})})
    ship_report(service, lost, spool_folder)
    body = {"rollout_ids": ["pin-lost"], "penalty_version": version}
    answer = service.client().post("/v1/penalties", json=body)
    assert (answer.status_code, answer.json()["code"]) == (409, "policy-unknown")


def test_as_of_gives_the_answer_of_then_byte_for_byte(service: Service, spool_folder: Path) -> None:
    first = report("then", [found("reward_forge")])
    ship_report(service, first, spool_folder)
    [before] = ask(service, ["then"])
    body = {"rollout_ids": ["then", "then-later"], "as_of": before["as_of"]}
    once = service.client().post("/v1/penalties", json=body).content
    revised = first.model_copy(update={"penalty": Penalty(value=-0.5, revision=2)})
    ship_report(service, revised, spool_folder)
    ship_report(service, report("then-later"), spool_folder)
    assert service.client().post("/v1/penalties", json=body).content == once
    assert [one["value"] for one in ask(service, ["then", "then-later"])] == [-0.5, 0.0]
    assert ask(service, ["then"], as_of=before["as_of"]) == [before]


def test_a_late_row_with_an_old_date_changes_no_past_answer(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("late", attempt=1), spool_folder)
    [before] = ask(service, ["late"])
    late = report("late", [found("reward_forge")], attempt=2)
    made_at = datetime.fromisoformat(before["as_of"]) - timedelta(days=3)
    ship(service, report_rows(late, wall_offset_ns=0, recorded_at=made_at), spool_folder)
    assert ask(service, ["late"])[0]["attempt"] == 2
    assert ask(service, ["late"], as_of=before["as_of"]) == [before]


def test_a_time_to_come_and_one_without_offset_are_refused(service: Service) -> None:
    client = service.client()
    for at, code in (("2999-01-01T00:00:00Z", "time-to-come"), ("2026-01-01T00:00:00", "invalid-request")):
        answer = client.post("/v1/penalties", json={"rollout_ids": ["r"], "as_of": at})
        assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_the_client_pins_and_repeats(service: Service, spool_folder: Path) -> None:
    ship_rules(service, RULES, spool_folder)
    dear = ship_rules(service, DEAR, spool_folder)
    ship_report(service, judged("client-pin", RULES, [found("service_scan")]), spool_folder)
    with PenaltyClient(home=service.home.root) as client:
        [plain] = client.batch(["client-pin"])
        assert client.batch(["client-pin"], penalty_version=dear)[0].value == -2.5
        assert client.batch(["client-pin"], as_of=plain.as_of) == [plain]
        assert client.batch(["client-pin"], as_of=str(plain.as_of)) == [plain]


def test_groups_of_different_enforcement_are_flagged(service: Service, spool_folder: Path) -> None:
    one_group = {"labels": {"group": "g1"}}
    ship_report(service, report("g-a", enforcement={"apparmor": "enforce"}, **one_group), spool_folder)
    ship_report(service, report("g-b", enforcement={"apparmor": "absent"}, **one_group), spool_folder)
    ship_report(service, report("g-c", labels={"task": "t1"}), spool_folder)
    ship_report(service, report("g-d", labels={"task": "t1"}, coverage={"denial": "disabled"}), spool_folder)
    ship_report(service, report("g-e", labels={"task": "t2"}), spool_folder)
    ship_report(service, report("g-f", labels={"task": "t2"}), spool_folder)
    ids = ["g-a", "g-b", "g-c", "g-d", "g-e", "g-f"]
    differs = [True, True, True, True, False, False]
    assert [one["enforcement_differs"] for one in ask(service, ids)] == differs
    with PenaltyClient(home=service.home.root) as client:
        answered = client.batch(ids)
        assert [one.enforcement_differs for one in answered] == differs
        assert [one.enforcement_differs for one in client.batch(["g-a", "g-c", "g-e"])] == [False] * 3
    assert answered[0].enforcement == {"apparmor": "enforce"}
    assert (answered[0].group, answered[3].group, answered[3].unwatched) == ("g1", "t1", ["denial"])


def test_sandboxes_of_one_rollout_under_different_enforcement_are_mixed(
    service: Service, spool_folder: Path
) -> None:
    for state in ("enforce", "absent"):
        mixed = {"apparmor": state, "seccomp": "enforce"}
        ship_report(service, report("g-mixed", enforcement=mixed), spool_folder)
    [one] = ask(service, ["g-mixed"])
    assert one["enforcement"] == {"apparmor": "mixed", "seccomp": "enforce"}
    assert one["watermark"] is None


def test_detectors_come_with_the_version_that_judged_and_none_that_only_watches(
    service: Service, spool_folder: Path
) -> None:
    rules = policy("{cap: 1.75}", f"n{uuid.uuid4().hex}")
    rules = rules.model_copy(
        update={"detectors": rules.detectors.model_copy(update={"monitor_only": ["early_exit"]})}
    )
    told = {"reward_forge": (1, False), "early_exit": (1, True)}
    ship_detectors(service, rules, told, spool_folder)
    ship_report(service, judged("d-first", rules), spool_folder)
    assert ask(service, ["d-first"])[0]["detectors"] == {"reward_forge": 1}
    ship_detectors(service, rules, {"reward_forge": (2, False)}, spool_folder)
    ship_report(service, judged("d-second", rules), spool_folder)
    first, second = ask(service, ["d-first", "d-second"])
    assert (first["detectors"], second["detectors"]) == ({"reward_forge": 1}, {"reward_forge": 2})
    assert (first["watermark"], first["recorded_at"] < second["recorded_at"]) == (100, True)


def test_rows_from_before_their_own_columns_are_completed(service: Service, spool_folder: Path) -> None:
    older = report("older", enforcement={"apparmor": "complain"}, labels={"group": "g"}, failure="why")
    tables = report_rows(older, wall_offset_ns=0)
    new = ("labels", "failure", "watermark", "enforcement", "unwatched", "confinement_version")
    tables["penalties"] = tables["penalties"].drop_columns(list(new))
    ship(service, tables, spool_folder)
    [one] = ask(service, ["older"])
    assert (one["enforcement"], one["watermark"], one["group"]) == ({"apparmor": "complain"}, 100, "g")
    assert (one["failure"], one["versions"]["confinement"]) == ("why", "sha256:c0")
