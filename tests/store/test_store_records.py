"""Reports become rows, and the named queries answer what researchers ask of them."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from store_samples import START, incident, report, rows

from invigilator.incidents import queries
from invigilator.incidents import rows as record_rows
from invigilator.incidents.records import Exit, Penalty, PenaltyReason, Report, Review
from invigilator.incidents.rows import DetectorRow, Step
from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store, StoreError

STAMPED = {"segment_id", "day", "node_id"}


class Desk:
    """A spool and a store, and a way from records to rows."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.spool = store, Spool(folder)

    def keep(self, table: str, data: object, box: uuid.UUID | None = None) -> None:
        made = self.spool.append(table, data, box)
        self.store.ingest(made.read_bytes(), made.header())

    def file(self, given: Report, steps: list[Step] | None = None) -> Report:
        for table, data in record_rows.report_rows(given, wall_offset_ns=5, steps=steps or []).items():
            self.keep(table, data)
        return given


@pytest.fixture
def desk(store: Store, tmp_path: Path) -> Desk:
    return Desk(store, tmp_path / "spool")


def test_the_rows_have_exactly_the_tables_columns(store: Store) -> None:
    for table, columns in record_rows.COLUMNS.items():
        assert set(columns) | STAMPED == set(store.columns()[table]), table


def test_a_report_is_found_again_whole(desk: Desk) -> None:
    odd = "na\udcffme\n'\"\\"
    step = Step(1, "call-1", "agent", "agent", ["sh", odd], START, START, Exit(code=1, reason="exited"), 7)
    reason = PenaltyReason(kind="test_tamper", weight=1, factor=1, cost=1, incidents=["i"], text="one")
    filed = desk.file(
        report("r1", [incident(summary='It "quoted"\n it.')], penalty=Penalty(value=-1.0, reasons=[reason])),
        [step],
    )
    [found] = queries.run(desk.store, "rollout_report", rollout_id="r1").to_pylist()
    assert Report.model_validate_json(found["report"]) == filed
    [row] = desk.store.query("SELECT * FROM incidents_current").to_pylist()
    assert (row["summary"], row["use"], row["review"]) == ('It "quoted"\n it.', "none", "")
    assert json.loads(row["evidence"][0]) == {"event": "x", "path": "/t"}
    [penalty] = desk.store.query("SELECT value, drop, reasons FROM penalties_current").to_pylist()
    assert penalty["value"] == -1.0 and json.loads(penalty["reasons"][0])["kind"] == "test_tamper"
    [kept] = desk.store.query("SELECT command, exit_code FROM steps").to_pylist()
    assert kept == {"command": "sh na\\udcffme\n'\"\\", "exit_code": 1}
    [seen] = desk.store.query("SELECT lost FROM coverage_current WHERE class = 'file'").to_pylist()
    assert seen == {"lost": 1}


def test_an_unknown_penalty_stays_unknown(desk: Desk) -> None:
    desk.file(report("r1", status="partial", penalty=Penalty(value=None, drop=True)))
    assert desk.store.query("SELECT value, drop FROM penalties_current").to_pylist() == [
        {"value": None, "drop": True}
    ]


def test_a_new_revision_replaces_incidents_and_penalty_and_the_latest_attempt_answers(desk: Desk) -> None:
    first = desk.file(report("r1", [incident("a"), incident("b")]))
    desk.file(first.model_copy(update={"incidents": [], "penalty": Penalty(value=0.0, revision=2)}))
    assert desk.store.query("SELECT count() AS n FROM incidents_current")["n"].to_pylist() == [0]
    assert desk.store.query("SELECT count() AS n FROM incidents")["n"].to_pylist() == [2]
    desk.file(report("r1", [incident("c")], attempt=2))
    assert desk.store.query("SELECT attempt, value FROM penalties_current").to_pylist() == [
        {"attempt": 2, "value": -1.0}
    ]


def test_a_review_stands_beside_its_incident_and_the_latest_decision_counts(desk: Desk) -> None:
    filed = desk.file(report("r1", [incident()]))
    for minute, decision in enumerate(("dismiss", "confirm", "comment")):
        review = Review.model_validate(
            {
                "incident_id": filed.incidents[0].id,
                "decision": decision,
                "reviewer": "ö",
                "at": START + timedelta(minutes=minute),
            }
        )
        desk.keep("reviews", record_rows.review_rows([review]))
    assert desk.store.query("SELECT review, reviewer FROM incidents_current").to_pylist() == [
        {"review": "confirm", "reviewer": "ö"}
    ]


def test_policies_and_detectors_are_kept_in_full(desk: Desk) -> None:
    policy = report("r").policy
    desk.keep("policies", record_rows.policy_rows(policy, '{"a":1}', "a: 1\n"))
    detector = DetectorRow("scan", 3, "service_scan", "network", "Many targets.", {"targets": 20}, False, 1.0)
    desk.keep("detectors", record_rows.detector_rows([detector], policy.versions.detection))
    assert desk.store.query("SELECT text, source FROM policies").to_pylist() == [
        {"text": '{"a":1}', "source": "a: 1\n"}
    ]
    [row] = desk.store.query("SELECT * FROM detectors").to_pylist()
    assert (row["detector_version"], row["thresholds"]) == (3, '{"targets":20}')


def test_rates_are_bounds_that_partial_rollouts_widen(desk: Desk) -> None:
    desk.file(report("cheat", [incident("test_tamper")]))
    desk.file(report("blind cheat", [incident("test_tamper", outcome="denied")], status="partial"))
    desk.file(report("blind", status="partial", penalty=Penalty(value=None, drop=True)))
    for i in range(6):
        desk.file(report(f"honest {i}"))
    desk.file(report("broken", status="failed", failure="no disk"))
    [rate] = queries.run(desk.store, "incidents_per_1000", run_id="run").to_pylist()
    assert (rate["kind"], rate["rollouts_with"], rate["rollouts"]) == ("test_tamper", 2, 9)
    assert (rate["low"], rate["high"]) == (pytest.approx(2000 / 9), pytest.approx(3000 / 9))
    [tried] = queries.run(desk.store, "attempts_and_successes").to_pylist()
    assert (tried["success"], tried["denied"], tried["rollouts_tried"], tried["success_ratio"]) == (
        1,
        1,
        2,
        0.5,
    )
    [dirty] = queries.run(desk.store, "contaminated_rewards").to_pylist()
    assert (dirty["contaminated"], dirty["incomplete"], dirty["rollouts"]) == (1, 2, 9)
    [label] = queries.run(desk.store, "incidents_by_label", label="checkpoint").to_pylist()
    assert (label["value"], label["with_incident"], label["kinds"]) == ("120", 2, ["test_tamper"])
    assert queries.run(desk.store, "incidents_per_1000", run_id="other").num_rows == 0


def test_what_a_sandbox_did_is_told_by_the_named_queries(desk: Desk) -> None:
    box = uuid.uuid4()
    desk.keep("events", rows(60, box), box)
    tree = queries.run(desk.store, "process_tree", sandbox_id=box).to_pylist()
    assert len(tree) == 7 and sum(process["events"] for process in tree) == 60
    files = queries.run(desk.store, "files_touched", sandbox_id=box, prefix="/tmp/").to_pylist()
    assert files and all(row["path"].startswith("/tmp/") and row["kind"] == "open" for row in files)
    assert queries.run(desk.store, "network_map", sandbox_id=box).num_rows == 0
    line = queries.run(desk.store, "timeline", sandbox_id=box).to_pylist()
    assert [row["seq"] for row in line] == sorted(row["seq"] for row in line) and len(line) == 20


def test_a_query_says_what_it_needs(store: Store) -> None:
    with pytest.raises(StoreError, match="needs sandbox_id"):
        queries.run(store, "timeline")
    with pytest.raises(StoreError, match="no parameter x"):
        queries.run(store, "timeline", x=1)
    with pytest.raises(StoreError, match="there are: "):
        queries.run(store, "nothing")
    assert all(query.summary for query in queries.catalogue().values())
