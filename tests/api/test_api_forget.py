"""What is forgotten is gone from every table, stays gone when it comes late, and is on record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from serving import Service, incident, report, ship_report

from invigilator.guard.api.tokens import TokenFile
from invigilator.incidents.forget import CONDITIONS, Meant
from invigilator.incidents.rows import report_rows
from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store

PATIENCE_S = 60.0


def everything(service: Service, name: str) -> dict[str, int]:
    """How many rows of each table name a rollout."""
    counted = {}
    for table in ("rollouts", "sandboxes", "penalties", "incidents", "coverage", "deliveries"):
        query = f"SELECT count() AS n FROM {table} WHERE rollout_id = {{name:String}}"
        body = {"query": query, "parameters": {"name": name}}
        counted[table] = service.client().post("/v1/sql", json=body).json()["rows"][0][0]
    return counted


def handed_out(service: Service, name: str) -> None:
    """Wait until what was answered of a rollout is in the store: it follows the answer."""
    deadline = time.monotonic() + PATIENCE_S
    while not everything(service, name)["deliveries"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_forgotten_rollout_is_gone_and_its_neighbour_is_not(service: Service, spool_folder: Path) -> None:
    for name in ("f-gone", "f-kept"):
        one = incident("reward_forge", id=f"{name}-incident")
        ship_report(service, report(name, [one]), spool_folder)
        body = {"decision": "confirm", "comment": name}
        assert service.client().post(f"/v1/incidents/{one.id}/reviews", json=body).status_code == 201
        assert service.client().post("/v1/penalties", json={"rollout_ids": [name]}).status_code == 200
        handed_out(service, name)
    kept = everything(service, "f-kept")
    answer = service.client().post("/v1/forget", json={"rollout_id": "f-gone"})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["sandboxes"], answer.json()["rollouts"]) == (1, ["f-gone"])
    assert set(everything(service, "f-gone").values()) == {0}
    assert everything(service, "f-kept") == kept and min(kept.values()) > 0
    query = "SELECT comment FROM reviews WHERE comment IN ('f-gone', 'f-kept')"
    assert service.client().post("/v1/sql", json={"query": query}).json()["rows"] == [["f-kept"]]
    told = service.client().get("/v1/audit", params={"action": "forget"}).json()["audit"]
    mine = [one for one in told if one["subject"] == "rollout f-gone"]
    assert len(mine) == 1 and json.loads(mine[0]["before"])["rollouts"] == ["f-gone"]


def test_a_dry_run_names_what_it_would_be_and_takes_nothing(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("f-dry"), spool_folder)
    answer = service.client().post("/v1/forget", json={"rollout_id": "f-dry", "dry_run": True})
    assert answer.json() == {"sandboxes": 1, "rollouts": ["f-dry"], "rows": {}}
    assert everything(service, "f-dry")["rollouts"] == 1


def test_a_project_is_forgotten_as_a_whole(service: Service, spool_folder: Path) -> None:
    for name, project in (("f-p1", "doomed"), ("f-p2", "doomed"), ("f-p3", "spared")):
        ship_report(service, report(name, labels={"project": project}), spool_folder)
    assert service.client().post("/v1/forget", json={"project": "doomed"}).json()["rollouts"] == [
        "f-p1",
        "f-p2",
    ]
    assert [everything(service, name)["rollouts"] for name in ("f-p1", "f-p2", "f-p3")] == [0, 0, 1]


def test_a_rollout_of_several_runs_has_to_be_named_with_its_run(service: Service, spool_folder: Path) -> None:
    for run in ("run-a", "run-b"):
        ship_report(service, report("f-twice", run_id=run), spool_folder)
    client = service.client()
    assert client.post("/v1/forget", json={"rollout_id": "f-twice"}).status_code == 409
    assert client.post("/v1/forget", json={"rollout_id": "f-twice", "run_id": "run-a"}).status_code == 200
    assert everything(service, "f-twice")["rollouts"] == 1


WRONG: list[dict[str, Any]] = [
    {},
    {"rollout_id": "", "project": ""},
    {"rollout_id": "a", "project": "b"},
    {"project": "b", "run_id": "c"},
    {"everything": True},
]


@pytest.mark.parametrize("order", WRONG)
def test_an_order_that_is_not_clear_is_refused(service: Service, order: dict[str, Any]) -> None:
    assert service.client().post("/v1/forget", json=order).status_code == 422


@pytest.mark.parametrize("name", ["no-such", "' OR 1 = 1 --", "\\", "%"])
def test_what_is_not_there_cannot_be_forgotten(service: Service, name: str) -> None:
    assert service.client().post("/v1/forget", json={"rollout_id": name}).status_code == 404
    assert service.client().post("/v1/forget", json={"project": name}).status_code == 404


@pytest.mark.parametrize("role", ["node", "trainer", "researcher", "engineer", "scraper"])
def test_none_but_an_admin_has_anything_forgotten(service: Service, role: str) -> None:
    text = TokenFile(service.home.tokens).create(role, role, 60.0)[1]
    answer = service.client(text, tcp=True).post("/v1/forget", json={"rollout_id": "x"})
    assert answer.status_code == 403


def test_rows_that_come_late_are_taken_out_again(tmp_path: Path) -> None:
    made = report("late", [incident("reward_forge")])
    tables = report_rows(made, wall_offset_ns=0)
    spool = Spool(tmp_path / "spool")
    segments = [spool.append(table, rows, None) for table, rows in tables.items()]
    first, later = segments[: len(segments) // 2], segments[len(segments) // 2 :]
    store = Store.open(tmp_path / "store")
    store.migrate()
    for one in first:
        store.ingest(one.read_bytes(), one.header())
    gone = store.forget(store.boxes(Meant("late")))
    assert gone and set(gone) <= set(CONDITIONS)
    for one in later:
        store.ingest(one.read_bytes(), one.header())
    assert store.boxes(Meant("late")) or store.sweep()
    store.sweep()
    assert store.boxes(Meant("late")) == [] and store.sweep() == {}
    for one in segments:
        assert store.ingest(one.read_bytes(), one.header()).duplicate
    assert store.boxes(Meant("late")) == []
    store.close()
    spool.close()
