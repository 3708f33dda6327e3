"""/v1/exports and the record as frames: nothing lost or cut silently, valid OCSF, kept who took what."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
from jsonschema import Draft202012Validator
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema
from serving import Service, incident, report, ship, ship_report

from invigilator.ebpf.events import EVENT, EventBatch, EventClass, Kind, Phase, Tier
from invigilator.guard.errors import RefusedError
from invigilator.guard.export import export
from invigilator.guard.ocsf import FILE, NETWORK, OCSF_VERSION, PROCESS
from invigilator.guard.research import CutWarning, Invigilator

BOX = uuid.UUID(int=0x77)
HOSTILE = b"/tmp/\xff\xfe\n'\"\\`\x1b[2J"
KINDS = [Kind[name.upper()] for name in (*PROCESS, *FILE, *NETWORK, "mount")]


def batch() -> EventBatch:
    """One event of each kind that OCSF has a class for, by turns refused, and one that it has none for."""
    made = np.zeros(len(KINDS), EVENT)
    made["seq"] = 1 + np.arange(len(KINDS))
    made["time_ns"] = 10**12 + made["seq"]
    made["kind"] = KINDS
    made["class"] = EventClass.FILE
    made["phase"] = made["origin_phase"] = Phase.AGENT
    made["tiers"] = Tier.TRACEPOINT
    made["result"] = np.where(made["seq"] % 2, -13, 0)
    made["pid"], made["a1"], made["mode"] = 7, 9, 0o100644
    made["path"] = made["path2"] = made["text"] = made["exe"] = 1
    made["family"], made["port"] = 2, 443
    made["address"] = np.frombuffer(bytes(10) + b"\xff\xff\x0a\x00\x00\x01", np.uint8)
    return EventBatch(made, [b"", HOSTILE])


@pytest.fixture(scope="module")
def record(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Invigilator]:
    """A service with a run of its own: three rollouts, one with events."""
    folder = tmp_path_factory.mktemp("exports")
    ship(service, {"events": batch().to_arrow(BOX.bytes)}, folder / "events")
    labels = {"checkpoint": "240", "odd 'key'": "ö"}
    found = [incident("test_tamper", attack=["T1565.001"]), incident("canary_read", severity="low")]
    box = str(BOX)
    ship_report(service, report("x-1", found, run_id="x", labels=labels, sandbox_id=box), folder / "1")
    ship_report(service, report("x-2", [incident("test_tamper", outcome="denied")], run_id="x"), folder / "2")
    ship_report(service, report("x-3", run_id="x"), folder / "3")
    with Invigilator(home=service.home.root) as opened:
        yield opened


def valid(made: list[dict[str, Any]]) -> None:
    """Every object obeys the schema of its class, as ocsf-json-schema makes it of OCSF's own release."""
    schema = OcsfJsonSchemaEmbedded(get_ocsf_schema(version=OCSF_VERSION))
    checks: dict[int, Draft202012Validator] = {}
    for one in made:
        uid = one["class_uid"]
        if uid not in checks:
            name = schema.lookup_class_name_from_uid(class_uid=uid)
            checks[uid] = Draft202012Validator(schema.get_class_schema(class_name=name, profiles=[]))
        problems = [f"{list(e.path)}: {e.message[:200]}" for e in checks[uid].iter_errors(one)]
        assert not problems, (one, problems)
        assert one["type_uid"] == uid * 100 + one["activity_id"]


def lines(file: Path) -> list[dict[str, Any]]:
    """A file's JSON Lines."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_json_lines_keep_every_byte(record: Invigilator, tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    done = export(record.exported("events", labels={"odd 'key'": "ö"}), "events", "jsonl", file)
    found = lines(file)
    assert done.rows == len(found) == len(KINDS)
    assert [row["kind"] for row in found] == [kind.name.lower() for kind in KINDS]
    assert base64.b64decode(found[0]["path"]["base64"]) == HOSTILE
    assert found[0]["ip"] == "10.0.0.1" and isinstance(found[0]["wall_time"], int)
    assert file.stat().st_mode & 0o777 == 0o600 and not list(tmp_path.glob(".*"))


def test_parquet_has_columns_and_types_without_rows_too(record: Invigilator, tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    export(record.exported("events", labels={"checkpoint": "240"}), "events", "parquet", full)
    export(record.exported("events", run_id="nobody's"), "events", "parquet", empty)
    assert parquet.read_schema(full).equals(parquet.read_schema(empty))
    assert parquet.read_table(full)["path"][0].as_py() == HOSTILE
    assert parquet.read_table(empty).num_rows == 0


def test_filters_choose_what_is_exported(record: Invigilator) -> None:
    def ids(**chosen: Any) -> list[str]:
        return sorted(
            row["rollout_id"] for table in record.exported("incidents", **chosen) for row in table.to_pylist()
        )

    assert ids(run_id="x") == ["x-1", "x-1", "x-2"]
    assert ids(run_id="x", kinds=["test_tamper"], outcome="denied") == ["x-2"]
    assert ids(run_id="x", labels={"checkpoint": "240"}) == ["x-1", "x-1"]
    assert ids(run_id="x", since="2026-12-24T00:00:00") == []


@pytest.mark.parametrize("rows", [1, 2, 20_000])
def test_pieces_of_any_size_make_the_same_whole(record: Invigilator, rows: int) -> None:
    def all_of(subject: Any, *names: str) -> list[tuple[Any, ...]]:
        pieces = list(record.exported(subject, run_id="x", rows=rows))
        assert all(piece.num_rows <= rows for piece in pieces)
        return [tuple(row[name] for name in names) for piece in pieces for row in piece.to_pylist()]

    values = all_of("rollouts", "rollout_id", "value")
    assert sorted(values) == [("x-1", -4.0), ("x-2", -2.0), ("x-3", 0.0)]
    kinds = all_of("incidents", "rollout_id", "kind")
    assert sorted(kinds) == [("x-1", "canary_read"), ("x-1", "test_tamper"), ("x-2", "test_tamper")]


def test_events_come_in_pieces_in_their_order(record: Invigilator) -> None:
    pieces = list(record.exported("events", labels={"checkpoint": "240"}, rows=7))
    seqs = [seq for piece in pieces for seq in piece["seq"].to_pylist()]
    assert seqs == list(range(1, len(KINDS) + 1)) and len(pieces) == -(-len(KINDS) // 7)


def test_incidents_and_events_are_valid_ocsf(record: Invigilator, tmp_path: Path) -> None:
    found, seen = tmp_path / "i", tmp_path / "e"
    export(record.exported("incidents", run_id="x"), "incidents", "ocsf", found)
    done = export(record.exported("events", labels={"checkpoint": "240"}), "events", "ocsf", seen)
    assert [row["class_uid"] for row in lines(found)] == [2004] * 3
    assert {row["class_uid"] for row in lines(seen)} == {1001, 1007, 4001}
    assert (done.rows, done.left_out) == (len(KINDS) - 1, 1)
    valid(lines(found) + lines(seen))


def test_ocsf_validation_finds_what_is_wrong(record: Invigilator, tmp_path: Path) -> None:
    file = tmp_path / "i"
    export(record.exported("incidents", run_id="x"), "incidents", "ocsf", file)
    with pytest.raises(AssertionError, match="severity_id"):
        valid([{**lines(file)[0], "severity_id": "high"}])


def test_a_failed_export_leaves_no_file(record: Invigilator, tmp_path: Path) -> None:
    def breaking() -> Iterator[Any]:
        yield from record.exported("rollouts", run_id="x")
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        export(breaking(), "rollouts", "jsonl", tmp_path / "r")
    with pytest.raises(RefusedError, match="OCSF"):
        export(record.exported("rollouts"), "rollouts", "ocsf", tmp_path / "r")
    assert not list(tmp_path.iterdir())


def test_exports_need_their_right_and_are_kept_in_the_audit(service: Service, record: Invigilator) -> None:
    asked = {"run_id": "x"}
    for role, status in (("trainer", 403), ("node", 403), ("engineer", 403), ("researcher", 200)):
        client = service.client(service.token(role), tcp=True)
        assert client.post("/v1/exports/incidents", json=asked).status_code == status, role
    told = service.client().get("/v1/audit", params={"action": "export"}).json()["audit"]
    [mine] = [one for one in told if one["who"] == "a researcher"]
    assert mine["subject"] == "incidents" and json.loads(mine["after"])["exported"] == 3


@pytest.mark.parametrize(
    "hostile",
    [
        {"after": {"seq": -1}},
        {"after": {"sandbox_id": "x"}},
        {"rows": 0},
        {"kinds": ["x" * 100]},
        {"since": "yesterday"},
        {"since": "0001-01-01T00:00:00Z", "rows": 10**9},
        {"labels": {str(n): "" for n in range(100)}},
        {"unknown": 1},
    ],
)
def test_hostile_wishes_are_refused(service: Service, hostile: dict[str, Any]) -> None:
    assert service.client().post("/v1/exports/events", json=hostile).status_code == 422
    assert service.client().post("/v1/exports/tokens", json={}).status_code == 422


def test_times_at_the_ends_of_the_calendar_are_no_error(service: Service) -> None:
    ends = {"since": "0001-01-01T00:00:00Z", "until": "9999-12-31T23:59:59Z", "rows": 1}
    assert service.client().post("/v1/exports/events", json=ends).status_code == 200


def test_events_come_as_a_frame_with_filters_and_say_when_they_are_cut(record: Invigilator) -> None:
    frame = record.events(sandbox_id=str(BOX), kinds=["exec", "open"])
    assert isinstance(frame, pd.DataFrame) and frame["kind"].tolist() == ["exec", "open"]
    assert len(record.events(labels={"checkpoint": "240"}, refused=True)) == sum(
        n % 2 for n in range(1, len(KINDS) + 1)
    )
    with pytest.warns(CutWarning, match="more than 3 events"):
        assert record.events(sandbox_id=str(BOX), limit=3)["seq"].tolist() == [1, 2, 3]
    with pytest.warns(CutWarning, match="more than 1 incidents"):
        assert len(record.incidents(run_id="x", limit=1)) == 1


def test_empty_frames_keep_columns_and_types(record: Invigilator) -> None:
    for some, none in (
        (record.events(sandbox_id=str(BOX)), record.events(sandbox_id=str(uuid.uuid4()))),
        (record.incidents(run_id="x"), record.incidents(run_id="nobody's")),
        (record.rollouts(run_id="x"), record.rollouts(run_id="nobody's")),
    ):
        assert isinstance(some, pd.DataFrame) and isinstance(none, pd.DataFrame)
        assert len(some) and not len(none)
        assert some.dtypes.to_dict() == none.dtypes.to_dict()
