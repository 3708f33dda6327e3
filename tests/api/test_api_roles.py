"""Every route for every role: a complete table; a route that is not in it fails the test."""

from __future__ import annotations

from pathlib import Path

from serving import Service, incident, report, ship, ship_report

from invigilator.guard.api.access import RIGHTS
from invigilator.guard.api.tokens import TokenFile
from invigilator.incidents.rows import DetectorRow, detector_rows

NODES = {"node", "admin"}
READERS = {"trainer", "researcher", "engineer", "admin"}
ANALYSTS = {"researcher", "engineer", "admin"}
MAY = {
    "GET /v1/stay": NODES,
    "POST /v1/segments": NODES,
    "POST /v1/segments/together": NODES,
    "POST /v1/falco": NODES,
    "GET /v1/metrics": {"scraper", "engineer", "admin"},
    "GET /v1/rollouts": READERS,
    "GET /v1/rollouts/{rollout_id}": READERS,
    "GET /v1/incidents": READERS,
    "GET /v1/incidents/{incident_id}": READERS,
    "POST /v1/penalties": READERS,
    "GET /v1/penalties/used": READERS,
    "POST /v1/penalties/backtest": READERS,
    "GET /v1/sandboxes/{sandbox_id}/events": ANALYSTS,
    "GET /v1/policies": ANALYSTS,
    "POST /v1/sql": ANALYSTS,
    "GET /v1/queries": ANALYSTS,
    "POST /v1/queries/{name}": ANALYSTS,
    "POST /v1/incidents/{incident_id}/reviews": {"researcher", "admin"},
    "POST /v1/exports/{subject}": {"researcher", "admin"},
    "GET /v1/audit": {"engineer", "admin"},
    "POST /v1/forget": {"admin"},
    "GET /v1/retention": {"engineer", "admin"},
    "PUT /v1/retention/{table}": {"admin"},
}
OPEN = {"GET /v1/health"}
FILLED = {
    "{sandbox_id}": "00000000-0000-0000-0000-000000000000",
    "{subject}": "incidents",
    "{rollout_id}": "none",
    "{incident_id}": "no-such-incident",
    "{name}": "none",
    "{table}": "none",
}


def routes(service: Service) -> set[str]:
    """The routes of the OpenAPI document."""
    paths = service.client().get("/v1/openapi.json").json()["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


def statuses(service: Service, token: str | None) -> dict[str, int]:
    """The status of every route's answer to a caller over TCP."""
    client = service.client(token, tcp=True)
    found = {}
    for route in sorted(routes(service) - OPEN):
        method, path = route.split(" ")
        for name, value in FILLED.items():
            path = path.replace(name, value)
        answer = client.request(method, path, json=None if method == "GET" else {})
        assert answer.status_code < 500, (route, answer.text)
        found[route] = answer.status_code
    return found


def test_the_table_has_every_route(service: Service) -> None:
    assert routes(service) == set(MAY) | OPEN


def test_every_role_is_refused_exactly_what_it_may_not(service: Service) -> None:
    for role in RIGHTS:
        token = TokenFile(service.home.tokens).create(f"walks as {role}", role, 600.0)[1]
        told = statuses(service, token)
        assert {route for route, status in told.items() if status != 403} == {
            route for route, roles in MAY.items() if role in roles
        }, role
        assert 401 not in told.values()


def test_who_shows_no_token_gets_no_further(service: Service) -> None:
    assert set(statuses(service, None).values()) == {401}


def test_no_answer_tells_a_trainer_of_what_is_only_watched(service: Service, spool_folder: Path) -> None:
    secret = "hush-threshold-4711"
    watched = incident(
        "residual_search", id="5ec2e75ec2e7", monitor_only=True, counted=False, weight=0.0, summary=secret
    )
    shown = incident("reward_forge")
    made = report("r-hushed", [watched, shown], run_id="hushed")
    ship_report(service, made, spool_folder)
    told = DetectorRow("residual_search", 1, "residual_search", "tamper", secret, {"n": 4711.0}, True, 0.0)
    ship(service, {"detectors": detector_rows([told], made.policy.versions.detection)}, spool_folder)
    trainer = service.client(TokenFile(service.home.tokens).create("curious", "trainer", 600.0)[1], tcp=True)
    researcher = service.client(
        TokenFile(service.home.tokens).create("reader", "researcher", 600.0)[1], tcp=True
    )
    asked = [
        ("GET", "/v1/rollouts?run_id=hushed", None),
        ("GET", "/v1/rollouts/r-hushed", None),
        ("GET", "/v1/incidents?run_id=hushed", None),
        ("GET", f"/v1/incidents/{watched.id}", None),
        ("GET", f"/v1/incidents/{shown.id}", None),
        ("GET", f"/v1/penalties/used?incident_id={watched.id}", None),
        ("POST", "/v1/penalties", {"rollout_ids": ["r-hushed"]}),
        ("POST", "/v1/sql", {"query": "SELECT * FROM detectors"}),
        ("POST", "/v1/exports/incidents", {"run_id": "hushed"}),
        ("GET", "/v1/audit", None),
    ]
    for client, sees in ((trainer, False), (researcher, True)):
        texts = [client.request(method, path, json=body).text for method, path, body in asked]
        assert any(secret in text for text in texts) is sees
        assert any("residual_search" in text for text in texts) is sees
