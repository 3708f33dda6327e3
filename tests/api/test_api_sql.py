"""/v1/sql: read-only, whatever is tried; results in three forms; hostile bytes come back as text."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from serving import Service, incident, report, ship_report

ATTACKS = [
    "INSERT INTO rollouts SELECT * FROM rollouts",
    "DROP TABLE rollouts",
    "ALTER TABLE rollouts DELETE WHERE 1",
    "CREATE TABLE x (a UInt8) ENGINE = Memory",
    "SELECT 1; DROP TABLE rollouts",
    "SELECT * FROM file('/etc/passwd', 'LineAsString')",
    "SELECT * FROM file('tokens', 'LineAsString')",
    "SELECT file('/etc/passwd')",
    "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM remote('127.0.0.1', 'system', 'one')",
    "SELECT * FROM executable('id', 'LineAsString', 'x String')",
    "SELECT * FROM s3('http://127.0.0.1/x')",
    "SELECT * FROM system.tables",
    "SELECT * FROM system.processes",
    "SELECT * FROM information_schema.tables",
    "SELECT 1 INTO OUTFILE '/tmp/invigilator-attack'",
    "SELECT 1 SETTINGS readonly = 0",
    "SET readonly = 0",
    "SELECT * FROM (SELECT * FROM file('/etc/passwd', 'LineAsString'))",
    "WITH x AS (SELECT * FROM system.settings) SELECT * FROM x",
    "SELECT getSetting('readonly')",
    "SELECT * FROM rollouts UNION ALL SELECT * FROM system.one",
    "SYSTEM SHUTDOWN",
    "ATTACH TABLE x FROM '/tmp' (a UInt8) ENGINE = File(TSV)",
    "SELECT sleep(3)",
    "SELECT dictGet('x', 'y', 1)",
    "SELECT * FROM merge('system', '.*')",
    "SELECT * FROM `file`('/etc/passwd')",
    "SELECT 1 FORMAT Native",
    "EXPLAIN SELECT 1",
    "KILL QUERY WHERE 1",
    "",
    "SELECT",
    "\0SELECT 1",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused_and_change_nothing(service: Service, attack: str) -> None:
    answer = service.client().post("/v1/sql", json={"query": attack})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert "root:" not in answer.text
    assert not Path("/tmp/invigilator-attack").exists()
    assert service.client().get("/v1/health").json()["store"] == "ready"


def test_parameters_are_values_never_sql(service: Service, spool_folder: Path) -> None:
    name = "x' OR 1=1 --"
    ship_report(service, report(name), spool_folder)
    body = {
        "query": "SELECT rollout_id FROM rollouts_current WHERE rollout_id = {r:String}",
        "parameters": {"r": name},
    }
    assert service.client().post("/v1/sql", json=body).json()["rows"] == [[name]]
    for value in ("nobody' OR '1'='1", "') UNION ALL SELECT 'a' --", "\\"):
        answer = service.client().post("/v1/sql", json={**body, "parameters": {"r": value}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["rows"] == []


def test_a_query_that_takes_too_much_is_refused_and_the_service_lives(service: Service) -> None:
    for query in (
        "SELECT number FROM numbers(200000)",
        "SELECT count() FROM numbers(100000000000) WHERE sipHash64(number) = 1",
    ):
        answer = service.client().post("/v1/sql", json={"query": query}, timeout=60)
        assert answer.status_code == 422, answer.text
    assert service.client().post("/v1/sql", json={"query": "SELECT 1 AS a"}).json()["rows"] == [[1]]


def test_results_come_as_json_csv_or_arrow(service: Service) -> None:
    body = {"query": "SELECT 1 AS a, 'x' AS b, [1, 2] AS c, map('k', 0.5) AS d, NULL AS e, 0/0 AS f"}
    found = service.client().post("/v1/sql", json=body).json()
    assert [column["name"] for column in found["columns"]] == ["a", "b", "c", "d", "e", "f"]
    assert found["rows"] == [[1, "x", [1, 2], {"k": 0.5}, None, None]]
    csv = service.client().post("/v1/sql", json=body, headers={"Accept": "text/csv"})
    assert csv.text.splitlines()[0] == '"a","b","c","d","e","f"'
    accept = {"Accept": "application/vnd.apache.arrow.stream"}
    table = pa.ipc.open_stream(service.client().post("/v1/sql", json=body, headers=accept).content).read_all()
    assert table["b"].to_pylist() == ["x"]


def test_bytes_that_are_no_text_come_back_readable(service: Service) -> None:
    answer = service.client().post("/v1/sql", json={"query": r"SELECT unhex('2fff0a1b5b') AS path"})
    assert answer.json()["rows"] == [["/\\xff\n\x1b["]]


@pytest.mark.parametrize("query", ["SELECT map() AS m", "SELECT [map()] AS m", "SELECT tuple() AS m"])
def test_a_type_that_cannot_be_converted_is_answered(service: Service, query: str) -> None:
    assert service.client().post("/v1/sql", json={"query": query}).status_code == 200


def test_hostile_names_survive_the_whole_way(service: Service, spool_folder: Path) -> None:
    name = "\x1b]0;x\x07<script>alert(1)</script>\u202e'\"\\\n"
    ship_report(
        service, report(name, [incident("reward_forge", summary=name)], labels={name: name}), spool_folder
    )
    found = service.client().get("/v1/incidents", params={"rollout_id": name}).json()["incidents"]
    assert [one["summary"] for one in found] == [name]
    from urllib.parse import quote

    answer = service.client().get(f"/v1/rollouts/{quote(name, safe='')}")
    assert answer.json()["labels"] == {name: name}
    assert answer.headers["content-type"] == "application/json"


def test_named_queries_run_with_their_parameters(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("q-named"), spool_folder)
    client = service.client()
    names = [one["name"] for one in client.get("/v1/queries").json()["queries"]]
    assert "rollout_report" in names
    answer = client.post("/v1/queries/rollout_report", json={"parameters": {"rollout_id": "q-named"}})
    columns = [column["name"] for column in answer.json()["columns"]]
    report_text = answer.json()["rows"][0][columns.index("report")]
    assert json.loads(report_text)["rollout_id"] == "q-named"
    assert client.post("/v1/queries/none", json={}).status_code == 404
    assert client.post("/v1/queries/rollout_report", json={"parameters": {"x": "1"}}).status_code == 422


def test_a_slow_query_holds_up_no_penalty(service: Service) -> None:
    import threading
    import time

    query = "SELECT count() FROM numbers(300000000000) WHERE sipHash64(number) = 1"
    slow = threading.Thread(
        target=lambda: service.client().post("/v1/sql", json={"query": query}, timeout=60)
    )
    slow.start()
    time.sleep(0.3)
    began_s = time.monotonic()
    answer = service.client().post("/v1/penalties", json={"rollout_ids": ["x"]})
    waited_s = time.monotonic() - began_s
    alive = slow.is_alive()
    slow.join()
    assert answer.status_code == 200
    assert alive, f"the penalty waited {waited_s:.1f} s for the query"
