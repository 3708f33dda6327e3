"""For how long rows are kept: said, changed by admins alone, and on record."""

from __future__ import annotations

from serving import Service


def test_each_table_s_days_are_told_and_what_is_kept_for_good(service: Service) -> None:
    tables = service.client().get("/v1/retention").json()["tables"]
    assert (tables["incidents"], tables["activity"], tables["audit"]) == (400, 400, None)


def test_a_change_holds_and_is_on_record(service: Service) -> None:
    client = service.client()
    before = client.get("/v1/retention").json()["tables"]["steps"]
    answer = client.put("/v1/retention/steps", json={"days": before + 7})
    assert answer.status_code == 200, answer.text
    assert client.get("/v1/retention").json()["tables"]["steps"] == before + 7
    told = client.get("/v1/audit", params={"action": "retention"}).json()["audit"]
    assert told[0]["subject"] == "steps"


def test_what_cannot_be_kept_is_refused_in_words(service: Service) -> None:
    client = service.client()
    for table, days, status in (
        ("audit", 3, 404),
        ("nothing", 3, 404),
        ("steps", 0, 422),
        ("steps", 10**6, 422),
    ):
        answer = client.put(f"/v1/retention/{table}", json={"days": days})
        assert answer.status_code == status, (table, days, answer.text)
