"""GET /v1/metrics: Prometheus's own parser reads it, no agent's text is a label, a scraper sees no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Service, incident, report, ship_report

from invigilator.guard.api.metrics import VALUES_MOST, last_day
from invigilator.guard.nodemetrics import agent_metrics


def scrape(service: Service) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, labels) → value."""
    answer = service.client(service.token("scraper"), tcp=True).get("/v1/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_segments_rows_answers_and_requests_are_counted(service: Service, spool_folder: Path) -> None:
    before = scrape(service)
    ship_report(service, report("m-1", [incident("reward_forge")]), spool_folder)
    client = service.client()
    client.post("/v1/penalties", json={"rollout_ids": ["m-1", "m-nobody"]})
    client.get("/v1/no/such%0Aroute")
    after = scrape(service)

    def more(name: str, **labels: str) -> float:
        key = (f"invigilator_{name}", tuple(sorted(labels.items())))
        return after.get(key, 0.0) - before.get(key, 0.0)

    assert more("segments_total", table="incidents", outcome="stored") == 1
    assert more("rows_stored_total", table="incidents") == 1
    assert more("penalties_answered_total", status="final") == 1
    assert more("penalties_answered_total", status="unavailable") == 1
    route = {"method": "POST", "route": "/v1/penalties", "status": "2xx"}
    assert more("request_duration_seconds_count", **route) == 1
    assert more("request_duration_seconds_count", method="GET", route="other", status="4xx") >= 1
    assert after["invigilator_store_up", ()] == 1
    assert after["invigilator_events_last_day", ()] >= 0 <= after["invigilator_dropped_last_day", ()]


@pytest.mark.parametrize(("role", "status"), [("trainer", 403), ("node", 403), ("engineer", 200)])
def test_who_may_scrape(service: Service, role: str, status: int) -> None:
    assert service.client(service.token(role), tcp=True).get("/v1/metrics").status_code == status


@pytest.mark.parametrize("path", ["/v1/incidents", "/v1/rollouts", "/v1/queries"])
def test_a_scraper_sees_nothing_else(service: Service, path: str) -> None:
    assert service.client(service.token("scraper"), tcp=True).get(path).status_code == 403


def rows(*kinds: str) -> list[dict[str, Any]]:
    return [{"what": "incidents", "one": kind, "two": "success", "n": 1.0} for kind in kinds]


def test_no_label_is_hostile_and_their_number_has_an_end() -> None:
    hostile = ['x"} 1\n', "ключ", "", "A" * 100]
    many = [f"falco.rule_{number}" for number in range(2 * VALUES_MOST)]
    made = last_day(rows(*hostile, *many), "incidents", "Incidents", "kind", "outcome")
    kinds = {sample.labels["kind"]: sample.value for sample in made.samples}
    assert len(kinds) <= VALUES_MOST + 1
    assert sum(kinds.values()) == len(hostile) + len(many)
    assert kinds["other"] >= len(hostile)


def test_every_metric_that_the_documentation_names_is_there(service: Service) -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    named = {match.split("{")[0] for match in re.findall(r"invigilator_[a-z_]+", text)}
    told = {name for name, _ in scrape(service)}
    told |= set(re.findall(r"^invigilator_\w+", agent_metrics({"running": True}), re.MULTILINE))
    families = {re.sub(r"_(count|sum|bucket|created)$", "", name) for name in told}
    families |= {
        f"invigilator_{name}"
        for name in (
            "segments_total",
            "rows_stored_total",
            "penalties_answered_total",
            "incidents_last_day",
            "rollouts_last_day",
            "lost_last_day",
        )
    }
    assert named <= families, named - families
