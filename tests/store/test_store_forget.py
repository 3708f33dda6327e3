"""Forgetting, and readers who are bound to projects, on both engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_samples import report

from invigilator.incidents.forget import CONDITIONS, Meant
from invigilator.incidents.records import Report
from invigilator.incidents.rows import report_rows
from invigilator.incidents.segment import Segment
from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store, StoreError

BETA_READS = (
    "SELECT rollout_id FROM rollouts",
    "SELECT rollout_id FROM rollouts_current AS sandboxes",
    "SELECT a.rollout_id FROM rollouts AS a JOIN penalties AS p ON a.rollout_id = p.rollout_id",
    "SELECT arrayJoin((SELECT groupArray(rollout_id) FROM rollouts)) AS rollout_id",
)


def segments(spool: Spool, made: Report) -> list[tuple[bytes, Segment]]:
    """The segments of a report."""
    done = [spool.append(name, rows, None) for name, rows in report_rows(made, wall_offset_ns=0).items()]
    return [(one.read_bytes(), Segment.from_header(one.header())) for one in done]


def test_rows_that_come_late_are_taken_out_again(store: Store, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    sent = segments(spool, report("late"))
    spool.close()
    for content, header in sent[:2]:
        store.ingest(content, header)
    assert set(store.forget(store.boxes(Meant("late")))) <= set(CONDITIONS)
    for content, header in sent[2:]:
        store.ingest(content, header)
    store.sweep()
    assert store.boxes(Meant("late")) == [] and store.sweep() == {}
    assert all(store.ingest(content, header).duplicate for content, header in sent)
    assert store.boxes(Meant("late")) == []


def test_a_project_is_forgotten_and_others_are_not(store: Store, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    for name, labels in (("a", {"project": "alpha"}), ("b", {"project": "beta"}), ("c", {})):
        for content, header in segments(spool, report(name, labels=labels)):
            store.ingest(content, header)
    spool.close()
    assert store.sweep() == {}
    store.forget(store.boxes(Meant(project="alpha")))
    left = store.query("SELECT DISTINCT rollout_id FROM rollouts ORDER BY rollout_id")
    assert left["rollout_id"].to_pylist() == ["b", "c"]


@pytest.mark.parametrize("sql", BETA_READS)
def test_a_bound_reader_sees_the_projects_rows_alone(store: Store, tmp_path: Path, sql: str) -> None:
    spool = Spool(tmp_path / "spool")
    for name, labels in (("a", {"project": "alpha"}), ("b", {"project": "beta"}), ("c", {})):
        for content, header in segments(spool, report(name, labels=labels)):
            store.ingest(content, header)
    spool.close()
    bound = store.scoped(["beta"])
    assert set(bound.query(sql)["rollout_id"].to_pylist()) == {"b"}
    assert set(bound.select(sql)["rollout_id"].to_pylist()) == {b"b"}
    with pytest.raises(StoreError):
        bound.query("SELECT rollout_id FROM rollouts SETTINGS additional_table_filters = {}")
    assert set(store.query("SELECT rollout_id FROM rollouts")["rollout_id"].to_pylist()) == {"a", "b", "c"}
