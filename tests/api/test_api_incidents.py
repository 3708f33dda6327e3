"""/v1/incidents and /v1/rollouts: filters, evidence, reviews, reports."""

from __future__ import annotations

import uuid
from pathlib import Path

from serving import Service, incident, report, ship_report


def test_filters_choose_incidents(service: Service, spool_folder: Path) -> None:
    ship_report(
        service,
        report(
            "i-filter", [incident("reward_forge"), incident("access_probe", outcome="denied", severity="low")]
        ),
        spool_folder,
    )
    client = service.client()
    for filters, kinds in (
        ({}, {"reward_forge", "access_probe"}),
        ({"kind": "access_probe"}, {"access_probe"}),
        ({"outcome": "success"}, {"reward_forge"}),
        ({"severity": "low"}, {"access_probe"}),
        ({"run_id": "other"}, set()),
        ({"review": "none"}, {"reward_forge", "access_probe"}),
        ({"review": "dismiss"}, set()),
    ):
        found = client.get("/v1/incidents", params={"rollout_id": "i-filter", **filters}).json()["incidents"]
        assert {one["kind"] for one in found} == kinds, filters
    assert client.get("/v1/incidents", params={"limit": 0}).status_code == 422
    assert client.get("/v1/incidents", params={"limit": "x"}).status_code == 422


def test_an_incident_shows_its_evidence_by_the_first_digits_of_its_id(
    service: Service, spool_folder: Path
) -> None:
    number = uuid.uuid4().hex
    ship_report(service, report("i-show", [incident("reward_forge", id=number)]), spool_folder)
    client = service.client()
    for name in (number, number[:12]):
        found = client.get(f"/v1/incidents/{name}").json()
        assert found["id"] == number
        assert found["evidence"] == [{"path": "/bin/bash", "seq": 12}]
    assert client.get(f"/v1/incidents/{number[:3]}").status_code == 404
    assert client.get("/v1/incidents/none-such").status_code == 404
    assert client.get("/v1/incidents/%25%25%25%25%25%25").status_code == 404


def test_reviews_are_kept_and_the_latest_decision_holds(service: Service, spool_folder: Path) -> None:
    number = uuid.uuid4().hex
    ship_report(service, report("i-review", [incident("reward_forge", id=number)]), spool_folder)
    researcher = service.client(service.token("researcher"), tcp=True)
    for decision, comment in (("confirm", ""), ("dismiss", "the build did it"), ("comment", "see ticket")):
        body = {"decision": decision, "comment": comment, "reviewer": "somebody else"}
        answer = researcher.post(f"/v1/incidents/{number}/reviews", json=body)
        assert answer.status_code == 201, answer.text
        assert answer.json()["reviewer"] == "a researcher"
    found = researcher.get(f"/v1/incidents/{number}").json()
    assert [one["decision"] for one in found["reviews"]] == ["comment", "dismiss", "confirm"]
    assert found["review"] == "dismiss"
    listed = researcher.get("/v1/incidents", params={"rollout_id": "i-review", "review": "dismiss"}).json()
    assert [one["id"] for one in listed["incidents"]] == [number]
    local = service.client().post(
        f"/v1/incidents/{number[:10]}/reviews", json={"decision": "confirm", "reviewer": "ada"}
    )
    assert local.json()["reviewer"] == "ada"
    assert local.json()["incident_id"] == number


def test_a_review_of_nothing_is_refused(service: Service) -> None:
    client = service.client()
    assert client.post("/v1/incidents/none-such/reviews", json={"decision": "confirm"}).status_code == 404
    assert client.post("/v1/incidents/none-such/reviews", json={"decision": "maybe"}).status_code == 422
    assert client.post("/v1/incidents/none-such/reviews", json={}).status_code == 422


def test_the_report_comes_back_as_it_was_made(service: Service, spool_folder: Path) -> None:
    made = report("i-report", [incident("reward_forge")])
    ship_report(service, made, spool_folder)
    answer = service.client().get("/v1/rollouts/i-report")
    assert answer.json() == made.model_dump(mode="json")
    assert service.client().get("/v1/rollouts/i-nobody").status_code == 404


def test_attempts_and_sandboxes_can_be_chosen(service: Service, spool_folder: Path) -> None:
    first, second = report("i-attempts"), report("i-attempts", attempt=2)
    third = report("i-attempts", attempt=2)
    for made in (first, second, third):
        ship_report(service, made, spool_folder)
    client = service.client()
    latest = client.get("/v1/rollouts/i-attempts")
    assert latest.json()["attempt"] == 2
    assert set(latest.headers["x-sandboxes"].split(", ")) == {second.sandbox_id, third.sandbox_id}
    chosen = client.get("/v1/rollouts/i-attempts", params={"sandbox_id": third.sandbox_id})
    assert chosen.json()["sandbox_id"] == third.sandbox_id
    assert (
        client.get("/v1/rollouts/i-attempts", params={"attempt": 1}).json()["sandbox_id"] == first.sandbox_id
    )
    assert client.get("/v1/rollouts/i-attempts", params={"sandbox_id": "x"}).status_code == 422


def test_a_list_of_rollouts_has_their_penalties(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("i-list", [incident("reward_forge")]), spool_folder)
    [found] = service.client().get("/v1/rollouts", params={"rollout_id": "i-list"}).json()["rollouts"]
    assert (found["value"], found["status"], found["labels"]) == (-2.0, "final", {"checkpoint": "120"})
