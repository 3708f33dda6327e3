"""A token that is bound to projects sees nothing of others, by whatever route, table, view or query."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pytest
from serving import Service, incident, report, serving, ship_report

from invigilator.guard.api.tokens import TokenFile
from invigilator.guard.home import Home
from invigilator.incidents import migrations, scope
from invigilator.incidents.records import Report

PROJECTS = {"p-mine": "alpha", "p-other": "beta", "p-none": None}


@pytest.fixture(scope="module")
def peopled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, Report]]]:
    """A service with one rollout of the project asked for, one of another, one of none."""
    folder = tmp_path_factory.mktemp("projects")
    made: dict[str, Report] = {}
    with serving(Home(folder / "home")) as running:
        for number, (name, project) in enumerate(PROJECTS.items()):
            labels = {"project": project} if project else {}
            one = incident("reward_forge", id=f"{number}{uuid.uuid4().hex}", summary=f"secret of {name}")
            made[name] = report(name, [one], labels=labels, run_id=f"run of {name}")
            ship_report(running, made[name], folder / name)
            for decision in ("dismiss", "confirm"):
                body = {"decision": decision, "comment": f"seen in {name}"}
                path = f"/v1/incidents/{one.id}/reviews"
                assert running.client().post(path, json=body).status_code == 201
            assert running.client().post("/v1/penalties", json={"rollout_ids": [name]}).status_code == 200
        yield running, made


def bound(service: Service, role: str, *projects: str) -> httpx.Client:
    """A client with a token that is bound to projects."""
    text = TokenFile(service.home.tokens).create(f"bound {role}", role, 60.0, projects)[1]
    return service.client(text, tcp=True)


def foreign(text: str) -> list[str]:
    """What a text tells of rollouts that are not the project's."""
    return [name for name in PROJECTS if name != "p-mine" and name in text]


@pytest.mark.parametrize("role", ["trainer", "researcher", "engineer"])
def test_lists_and_single_answers_hold_the_project_alone(
    peopled: tuple[Service, dict[str, Report]], role: str
) -> None:
    service, made = peopled
    client = bound(service, role, "alpha")
    rollouts = client.get("/v1/rollouts").json()["rollouts"]
    assert [one["rollout_id"] for one in rollouts] == ["p-mine"]
    found = client.get("/v1/incidents").json()["incidents"]
    assert [one["rollout_id"] for one in found] == ["p-mine"]
    assert client.get("/v1/rollouts/p-mine").status_code == 200
    for name in ("p-other", "p-none"):
        assert client.get(f"/v1/rollouts/{name}").status_code == 404
        assert client.get(f"/v1/incidents/{made[name].incidents[0].id}").status_code == 404
    told = client.post("/v1/penalties", json={"rollout_ids": list(PROJECTS)}).json()["penalties"]
    assert [one["status"] != "unavailable" for one in told] == [True, False, False]
    assert foreign(client.get("/v1/rollouts").text + client.get("/v1/incidents").text) == []


def test_every_table_and_view_that_sql_reads_holds_the_project_alone(
    peopled: tuple[Service, dict[str, Report]],
) -> None:
    service, _ = peopled
    whole, client = service.client(), bound(service, "researcher", "alpha")
    seen = set()
    for table in tables():
        query = {"query": f"SELECT * FROM {table}"}
        everything, mine = whole.post("/v1/sql", json=query), client.post("/v1/sql", json=query)
        if everything.status_code != 200:
            assert mine.status_code == everything.status_code, table
            continue
        assert mine.status_code == 200, (table, mine.text)
        assert foreign(mine.text) == [], table
        if foreign(everything.text):
            seen.add(table)
            assert "p-mine" in everything.text
    assert {"rollouts", "rollouts_current", "incidents_current", "reviews", "deliveries", "penalties"} <= seen


def tables() -> list[str]:
    """Every table and view of the schema."""
    text = "\n".join(file.text for file in (*migrations.migrations(), *migrations.views()))
    return sorted(
        {*re.findall(r"^CREATE (?:TABLE|VIEW|MATERIALIZED VIEW) (\w+)", text, re.MULTILINE), "migrations"}
    )


def test_every_table_of_the_schema_says_who_of_those_bound_may_see_its_rows() -> None:
    text = "\n".join(file.text for file in migrations.migrations())
    made = set(re.findall(r"^CREATE (?:TABLE|MATERIALIZED VIEW) (\w+)", text, re.MULTILINE))
    known = set(scope.filters(["alpha"], of_users=True)) | set(scope.OPEN)
    assert made - known == set()


ATTACKS = [
    "SELECT rollout_id FROM rollouts AS sandboxes",
    "SELECT rollout_id FROM rollouts AS policies",
    "SELECT rollout_id FROM invigilator.rollouts",
    "SELECT map('project', 'alpha') AS labels, rollout_id FROM sandboxes",
    "WITH sandboxes AS (SELECT sandbox_id, map('project', 'alpha') AS labels FROM rollouts) "
    "SELECT rollout_id FROM rollouts",
    "SELECT a.rollout_id FROM rollouts AS a LEFT JOIN incidents AS i ON 1 = 1",
    "SELECT rollout_id FROM (SELECT * FROM rollouts UNION ALL SELECT * FROM rollouts)",
    "SELECT arrayJoin((SELECT groupArray(rollout_id) FROM rollouts))",
    "SELECT concat('p-', 'other') AS n WHERE (n, 1) IN (SELECT rollout_id, 1 FROM rollouts)",
    "SELECT rollout_id FROM rollouts SETTINGS additional_table_filters = {}",
    "SELECT rollout_id FROM rollouts WHERE 1 OR 1",
    "SELECT rollout_id FROM rollouts PREWHERE 1",
    "SELECT segment_id, toString(sandbox_id) AS s FROM segments",
]


@pytest.mark.parametrize("query", ATTACKS)
def test_no_query_undoes_the_bound(peopled: tuple[Service, dict[str, Report]], query: str) -> None:
    service, _ = peopled
    answer = bound(service, "researcher", "alpha").post("/v1/sql", json={"query": query})
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 200:
        assert foreign(answer.text) == []
        assert "segments" not in query or answer.json()["rows"] == []


@pytest.mark.parametrize(
    "name", ["alpha' OR 1 = 1 OR '", "al\\'pha", "\\", "'", '"', "a', 'beta", "{x:String}"]
)
def test_a_projects_name_is_only_ever_a_name(peopled: tuple[Service, dict[str, Report]], name: str) -> None:
    service, _ = peopled
    client = bound(service, "researcher", name)
    assert client.get("/v1/rollouts").json() == {"rollouts": []}
    assert client.post("/v1/sql", json={"query": "SELECT * FROM rollouts"}).json()["rows"] == []


def test_one_of_several_projects_is_enough(peopled: tuple[Service, dict[str, Report]]) -> None:
    service, _ = peopled
    found = bound(service, "trainer", "alpha", "beta").get("/v1/rollouts").json()["rollouts"]
    assert sorted(one["rollout_id"] for one in found) == ["p-mine", "p-other"]


def test_a_bound_reviewer_decides_on_the_projects_incidents_alone(
    peopled: tuple[Service, dict[str, Report]],
) -> None:
    service, made = peopled
    client = bound(service, "researcher", "alpha")
    asked = {
        name: client.post(f"/v1/incidents/{one.incidents[0].id}/reviews", json={"decision": "comment"})
        for name, one in made.items()
    }
    assert {name: answer.status_code for name, answer in asked.items()} == {
        "p-mine": 201,
        "p-other": 404,
        "p-none": 404,
    }


def test_what_tells_of_all_projects_is_not_for_who_is_bound(
    peopled: tuple[Service, dict[str, Report]],
) -> None:
    service, _ = peopled
    client = bound(service, "engineer", "alpha")
    assert [client.get(path).status_code for path in ("/v1/audit", "/v1/metrics")] == [403, 403]


def test_events_of_a_sandbox_of_another_project_are_not_there(
    peopled: tuple[Service, dict[str, Report]],
) -> None:
    service, made = peopled
    other = made["p-other"].sandbox_id
    answer = bound(service, "researcher", "alpha").get(f"/v1/sandboxes/{other}/events")
    assert pa.ipc.open_stream(answer.content).read_all().num_rows == 0
