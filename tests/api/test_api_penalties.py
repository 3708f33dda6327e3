"""POST /v1/penalties: the latest attempt answers, and what is not known is null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from serving import Service, incident, report, ship, ship_policy, ship_report

from invigilator.incidents.records import Penalty
from invigilator.incidents.rows import COLUMNS


def ask(service: Service, ids: list[str], **more: Any) -> list[dict[str, Any]]:
    answer = service.client().post("/v1/penalties", json={"rollout_ids": ids, **more})
    assert answer.status_code == 200, answer.text
    penalties: list[dict[str, Any]] = answer.json()["penalties"]
    return penalties


def test_unknown_rollout_is_unavailable_and_null_never_zero(service: Service) -> None:
    [found] = ask(service, ["nobody-knows-it"])
    assert found["status"] == "unavailable"
    assert found["value"] is None
    assert found["drop"] is True


def test_answers_come_in_the_order_asked_with_reasons_steps_and_versions(
    service: Service, spool_folder: Path
) -> None:
    bad = incident("system_binary_overwrite")
    ship_report(service, report("p-bad", [bad]), spool_folder)
    ship_report(service, report("p-good"), spool_folder)
    found = ask(service, ["p-good", "p-unknown", "p-bad", "p-good"])
    assert [one["rollout_id"] for one in found] == ["p-good", "p-unknown", "p-bad", "p-good"]
    assert found[0]["value"] == 0.0
    assert found[2]["value"] == -2.0
    assert found[2]["by_step"] == {"call-7": -2.0}
    assert found[2]["reasons"][0]["incidents"] == [bad.id]
    assert found[2]["versions"]["penalty"] == "sha256:e0"
    assert found[2]["status"] == "final"


def test_latest_attempt_answers_and_its_highest_revision(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("p-again", [incident("reward_forge")], attempt=1), spool_folder)
    second = report("p-again", attempt=2)
    ship_report(service, second, spool_folder)
    revised = second.model_copy(update={"penalty": Penalty(value=-0.5, revision=2)})
    ship_report(service, revised, spool_folder)
    [found] = ask(service, ["p-again"])
    assert (found["attempt"], found["revision"], found["value"]) == (2, 2, -0.5)


def test_incomplete_evidence_stays_null_and_is_dropped(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("p-partial", status="partial", penalty=Penalty(value=None)), spool_folder)
    failed = report(
        "p-failed", status="failed", failure="node lost power", penalty=Penalty(value=None, drop=True)
    )
    ship_report(service, failed, spool_folder)
    partial, broken = ask(service, ["p-partial", "p-failed"])
    assert (partial["status"], partial["value"], partial["drop"]) == ("partial", None, True)
    assert (broken["status"], broken["value"], broken["failure"]) == ("failed", None, "node lost power")


def test_same_rollout_id_in_two_runs_needs_the_run(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("p-twice", run_id="a"), spool_folder)
    ship_report(service, report("p-twice", [incident("reward_forge")], run_id="b"), spool_folder)
    answer = service.client().post("/v1/penalties", json={"rollout_ids": ["p-twice"]})
    assert answer.status_code == 409
    assert answer.json()["code"] == "ambiguous-rollout"
    assert ask(service, ["p-twice"], run_id="b")[0]["value"] == -2.0
    assert ask(service, ["p-twice"], run_id="a")[0]["value"] == 0.0


def test_sandboxes_of_one_rollout_count_a_kind_once_up_to_the_cap(
    service: Service, spool_folder: Path
) -> None:
    ship_policy(service, 3.0, spool_folder)
    ship_report(service, report("p-many", [incident("reward_forge")]), spool_folder)
    ship_report(service, report("p-many", [incident("reward_forge")]), spool_folder)
    [found] = ask(service, ["p-many"])
    assert found["value"] == -2.0
    assert len(found["reasons"]) == 1
    assert len(found["reasons"][0]["incidents"]) == 2
    ship_report(service, report("p-many", [incident("service_scan")]), spool_folder)
    [found] = ask(service, ["p-many"])
    assert found["value"] == -3.0


def test_one_unknown_sandbox_makes_a_clean_rollout_unknown(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("p-half"), spool_folder)
    ship_report(service, report("p-half", status="partial", penalty=Penalty(value=None)), spool_folder)
    [found] = ask(service, ["p-half"])
    assert (found["value"], found["drop"], found["status"]) == (None, True, "partial")


def test_names_of_any_kind_find_their_rollout(service: Service, spool_folder: Path) -> None:
    names = [
        "sp ace",
        "quo'te\"",
        "back\\slash",
        "new\nline",
        "ünï",
        "'; DROP TABLE penalties; --",
        "a/../b",
        "{x:String}",
    ]
    for name in names:
        ship_report(service, report(name, [incident("reward_forge")]), spool_folder)
    assert [one["value"] for one in ask(service, names)] == [-2.0] * len(names)


def test_a_batch_of_32000_is_one_question(service: Service, spool_folder: Path) -> None:
    import pyarrow as pa

    ship_report(service, report("p-many-0"), spool_folder)
    ids = [f"p-many-{number}-with-a-name-of-some-length" for number in range(32_000)]
    found = ask(service, [*ids, "p-many-0"])
    assert [one["status"] for one in found] == ["unavailable"] * 32_000 + ["final"]
    assert pa.types.is_floating(COLUMNS["penalties"]["value"])
    assert ship is not None


def test_half_a_surrogate_is_refused(service: Service) -> None:
    body = rb'{"rollout_ids": ["r1"], "run_id": "\ud800"}'
    answer = service.client().post(
        "/v1/penalties", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422, answer.text


def test_bad_requests_are_refused_with_the_field_named(service: Service) -> None:
    client = service.client()
    for body in (
        {},
        {"rollout_ids": "r1"},
        {"rollout_ids": [""]},
        {"rollout_ids": [1]},
        {"rollout_ids": [], "x": 1},
    ):
        answer = client.post("/v1/penalties", json=body)
        assert answer.status_code == 422, body
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"].startswith("body"), answer.json()
