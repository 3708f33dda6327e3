"""Who changed what: told once, durably, by routes and by commands that act while serve is down."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from serving import Service, incident, report, serving, ship_report

from invigilator.guard import auditing
from invigilator.guard.api.audit import pick_up
from invigilator.guard.api.outbox import Outbox
from invigilator.guard.home import Home
from invigilator.incidents.segment import decode
from invigilator.incidents.spool import Spool

DEADLINE_S = 60.0


def told(service: Service, **filters: str) -> list[dict[str, Any]]:
    """Changes on record, the latest first."""
    answer = service.client().get("/v1/audit", params=filters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["audit"]
    return found


def await_told(service: Service, count: int, **filters: str) -> list[dict[str, Any]]:
    """Changes on record, as soon as there are so many."""
    deadline_s = time.monotonic() + DEADLINE_S
    while len(found := told(service, **filters)) < count:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.1)
    return found


def test_a_review_is_on_record_with_who_and_what_it_was_before(service: Service, spool_folder: Path) -> None:
    one = incident("reward_forge")
    ship_report(service, report("audited", [one]), spool_folder)
    researcher = service.client(service.token("researcher"), tcp=True)
    for decision in ("confirm", "dismiss"):
        body = {"decision": decision, "comment": "seen"}
        assert researcher.post(f"/v1/incidents/{one.id}/reviews", json=body).status_code == 201
    dismissed, confirmed = told(service, subject=one.id)
    assert (confirmed["action"], confirmed["who"], confirmed["role"]) == (
        "review",
        "a researcher",
        "researcher",
    )
    assert confirmed["before"] == "" and json.loads(confirmed["after"])["decision"] == "confirm"
    assert json.loads(dismissed["before"])["decision"] == "confirm"
    assert json.loads(dismissed["after"])["comment"] == "seen"
    assert len(dismissed["token_id"]) == 12


def test_a_review_of_nothing_is_not_on_record(service: Service) -> None:
    answer = service.client().post("/v1/incidents/no-such-incident/reviews", json={"decision": "confirm"})
    assert answer.status_code == 404
    assert told(service, subject="no-such-incident") == []


def test_what_commands_change_while_serve_is_down_is_on_record_once_it_runs(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").make()
    auditing.leave(home, "token.create", "abc", after={"role": "trainer"})
    with serving(home) as running:
        auditing.leave(home, "token.revoke", "abc", before={"role": "trainer"})
        revoked, created = await_told(running, 2, subject="abc")
        assert (created["action"], revoked["action"]) == ("token.create", "token.revoke")
        assert created["who"].startswith("uid ") and created["role"] == "admin"
        assert list(home.audit.iterdir()) == []
    with serving(home) as again:
        assert len(told(again, subject="abc")) == 2


def test_a_change_that_is_picked_up_twice_is_one_row_for_the_store(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").make()
    auditing.leave(home, "token.create", "abc")
    left = next(home.audit.iterdir())
    content = left.read_bytes()
    outbox = Outbox(tmp_path / "outbox")
    assert pick_up(home.audit, outbox) == 1
    left.write_bytes(content)
    assert pick_up(home.audit, outbox) == 1
    outbox.close()
    spool = Spool(tmp_path / "outbox")
    segments = [decode(one.read_bytes()) for one in spool.pending()]
    spool.close()
    assert len({found.id for found, _ in segments}) == 1
    assert segments[0][1].to_pylist()[0]["action"] == "token.create"


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"at": "never"}', '{"at": 7}', "\x00"])
def test_a_damaged_change_is_set_aside_and_holds_up_no_other(tmp_path: Path, damage: str) -> None:
    home = Home(tmp_path / "home").make()
    (home.audit / "0.json").write_text(damage)
    auditing.leave(home, "token.create", "abc")
    outbox = Outbox(tmp_path / "outbox")
    assert pick_up(home.audit, outbox) == 1
    outbox.close()
    assert [path.name for path in home.audit.iterdir()] == ["0.damaged"]


@pytest.mark.parametrize(("role", "status"), [("engineer", 200), ("researcher", 403), ("trainer", 403)])
def test_the_audit_is_for_admins_and_engineers(service: Service, role: str, status: int) -> None:
    assert service.client(service.token(role), tcp=True).get("/v1/audit").status_code == status


def test_no_query_of_a_users_reads_or_writes_the_audit(service: Service) -> None:
    client = service.client()
    for query in ("SELECT * FROM audit", "ALTER TABLE audit DELETE WHERE 1", "TRUNCATE TABLE audit"):
        assert client.post("/v1/sql", json={"query": query}).status_code == 422
