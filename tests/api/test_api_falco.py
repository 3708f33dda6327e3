"""Alerts of Falco's, as it wrote them (versions 0.43, and one of 2019): kept, and incidents of their
sandboxes."""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from serving import Service, report, ship_report

from invigilator.incidents.records import Attached

RECORDED = Path(__file__).parent / "falco"
PATIENCE_S = 60.0


def recorded(name: str, **changes: Any) -> dict[str, Any]:
    """A recorded alert that happens now; `container_…` replace its output fields."""
    alert: dict[str, Any] = json.loads((RECORDED / name).read_text())
    alert["time"] = datetime.now(UTC).isoformat()
    for key, value in changes.items():
        alert["output_fields"][key.replace("_", ".", 1)] = value
    return alert


def send(service: Service, body: str | bytes, role: str = "node") -> Any:
    return service.client(service.token(role), tcp=True).post("/v1/falco", content=body)


def incidents_of(service: Service, rollout: str) -> list[dict[str, Any]]:
    """The rollout's incidents of Falco's, once there are any."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = service.client().get("/v1/incidents", params={"rollout_id": rollout})
        if found := [one for one in answer.json()["incidents"] if one["kind"].startswith("falco.")]:
            return found
        time.sleep(0.2)
    raise AssertionError("no incident")


def test_an_alert_of_the_guard_s_own_container_is_an_incident_that_costs_nothing(
    service: Service, spool_folder: Path
) -> None:
    made = report(
        "falco-own", started_at=datetime.now(UTC) - timedelta(minutes=1), ended_at=datetime.now(UTC)
    )
    name = f"invigilator-{made.sandbox_id}"
    lines = [json.dumps(recorded("shell-0.43.json", container_name=name)) for _ in range(2)]
    assert send(service, "\n".join(lines)).json() == {"taken": 2}
    ship_report(service, made, spool_folder)  # the verdict comes after the alerts
    [found] = incidents_of(service, "falco-own")
    assert (found["kind"], found["severity"], found["count"]) == (
        "falco.terminal_shell_in_container",
        "low",
        2,
    )
    assert (found["monitor_only"], found["counted"], found["attack"]) == (True, False, ["T1059"])
    assert found["sandbox_id"] == made.sandbox_id
    asked = service.client().post("/v1/penalties", json={"rollout_ids": ["falco-own"]}).json()
    assert asked["penalties"][0]["value"] == 0


def test_an_alert_of_a_container_that_others_made_is_found_by_its_id(
    service: Service, spool_folder: Path
) -> None:
    container = uuid.uuid4().hex * 2
    now = datetime.now(UTC)
    attached = Attached(
        cgroup=f"/system.slice/docker-{container}.scope", since=now, whole=True, ended="empty"
    )
    made = report(
        "falco-theirs",
        backend="attach",
        attached=attached,
        started_at=now,
        ended_at=now + timedelta(seconds=5),
    )
    ship_report(service, made, spool_folder)
    alert = recorded("shadow-0.43.json", container_id=container[:12])
    for _ in range(2):  # sent again, it changes nothing
        assert send(service, json.dumps([alert])).status_code == 200
    [found] = incidents_of(service, "falco-theirs")
    assert (found["kind"], found["channel"]) == ("falco.read_sensitive_file_untrusted", "retrieval")
    assert (found["severity"], found["count"]) == ("medium", 1)
    trainer = service.client(service.token("trainer"), tcp=True)
    told = trainer.get("/v1/incidents", params={"rollout_id": "falco-theirs"}).json()["incidents"]
    assert told == []


def test_an_alert_of_no_sandbox_is_kept(service: Service) -> None:
    alert = recorded("host-2019.json") | {"rule": "Nobody's"}
    assert send(service, json.dumps(alert)).status_code == 200
    deadline = time.monotonic() + PATIENCE_S
    sql = {"query": "SELECT priority, container_id FROM falco_alerts WHERE rule = 'Nobody\\'s'"}
    while not (rows := service.client().post("/v1/sql", json=sql).json()["rows"]):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert rows == [["notice", "host"]]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 50_000, b'{"rule": "x", "priority": "Notice"}',
        b'{"rule": "x", "priority": "Notice", "time": "yesterday"}', json.dumps([{"rule": ""}] * 3).encode(),
        b'{"rule": "x", "priority": "Notice", "time": "2026-01-01T00:00:00Z", "output_fields": []}',
    ],
)  # fmt: skip
def test_what_is_no_alert_is_refused_in_words(service: Service, body: bytes) -> None:
    answer = send(service, body)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")


def test_hostile_text_stays_text(service: Service) -> None:
    hostile = recorded("shell-0.43.json") | {"rule": "'; DROP TABLE events; -- \ud800<script>"}
    assert send(service, json.dumps(hostile)).status_code == 200


@pytest.mark.parametrize("role", ["trainer", "researcher", "engineer"])
def test_who_may_send(service: Service, role: str) -> None:
    assert send(service, json.dumps(recorded("host-2019.json")), role).status_code == 403
