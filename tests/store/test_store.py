"""The store, embedded and by URL: exactly once, typed as the event record, and honest about trouble."""

from __future__ import annotations

import random
import shutil
import subprocess
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from store_samples import WORDS, batch, rows

from invigilator.ebpf.events import EventBatch
from invigilator.incidents import migrations, replay, results, segment, stamp, tables
from invigilator.incidents.segment import Segment, SegmentError
from invigilator.incidents.spool import Spool
from invigilator.incidents.stamp import Origin
from invigilator.incidents.store import Store, StoreError, StoreUnavailableError

BOX = uuid.uuid4()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def count(store: Store, table: str = "events") -> int:
    return int(store.query(f"SELECT count() AS n FROM {table}")["n"][0].as_py())


def ingest(store: Store, made: Segment) -> bool:
    return store.ingest(made.read_bytes(), made.header()).duplicate


def aged(made: Segment, days: int) -> tuple[Segment, bytes]:
    """The same rows, as if spooled `days` ago."""
    old = replace(made, id=uuid.uuid4(), day=date.today() - timedelta(days=days), sha256="", size_bytes=0)
    return segment.encode(
        old, stamp.stamp(made.read().select(pa.schema(rows(1, BOX).schema).names), old, None)
    )


def test_events_come_back_for_replay_field_by_field(store: Store, spool: Spool) -> None:
    live = batch(500)
    half = live.records["seq"] > 250
    for where in (half, ~half):  # shipped out of order
        ingest(store, spool.append("events", live.select(where).to_arrow(BOX.bytes), BOX))
    parts = list(replay.read_events(store, BOX, batch_rows=200))
    assert [len(part) for part in parts] == [200, 200, 100]
    again = EventBatch.concat(parts)
    assert again.to_arrow(BOX.bytes).equals(live.to_arrow(BOX.bytes))
    assert [again.text("text", row) for row in range(5)] == [live.text("text", row) for row in range(5)]


def test_a_spool_and_the_store_replay_the_same_events(store: Store, spool: Spool) -> None:
    made = [spool.append("events", rows(30, BOX, first), BOX) for first in (1, 31)]
    for one in reversed(made):
        ingest(store, one)
    [stored] = replay.read_events(store, BOX)
    spooled = replay.read_segments(reversed(made), BOX)
    assert stored.to_arrow(BOX.bytes).equals(spooled.to_arrow(BOX.bytes))
    assert replay.wall_offset_ns(store, BOX) == made[0].wall_offset_ns


def test_a_segment_sent_again_in_any_order_changes_nothing(store: Store, spool: Spool) -> None:
    made = [spool.append("events", rows(100, BOX, 1 + 100 * i), BOX) for i in range(5)]
    sent = made * 3
    random.Random(3).shuffle(sent)
    assert sum(not ingest(store, one) for one in sent) == 5
    assert count(store) == 500
    assert store.query("SELECT sum(events) AS n FROM activity_readable")["n"][0].as_py() == 500
    assert count(store, "segments") == 5


def test_an_insert_without_its_ledger_row_is_recognised_and_its_roll_up_completed(
    store: Store, spool: Spool
) -> None:
    made = spool.append("events", rows(100, BOX), BOX)
    ingest(store, made)
    store._engine.command("TRUNCATE TABLE segments")
    store._engine.command("TRUNCATE TABLE activity")
    assert ingest(store, made) is True
    assert (count(store), count(store, "segments")) == (100, 1)
    assert store.query("SELECT sum(events) AS n FROM activity_readable")["n"][0].as_py() == 100


def test_the_engines_own_deduplication_holds_where_ledger_and_check_see_nothing(
    store: Store, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spool.append("events", rows(100, BOX), BOX)
    monkeypatch.setattr(store, "_known_rows", lambda segments: {one.id: (False, 0) for one in segments})
    for _ in range(3):
        ingest(store, made)
    assert count(store) == 100
    assert store.query("SELECT sum(events) AS n FROM activity_readable")["n"][0].as_py() == 100


def test_segments_sent_together_are_stored_as_if_each_came_by_itself(store: Store, spool: Spool) -> None:
    made = [spool.append("events", rows(100, BOX, 1 + 100 * i), BOX) for i in range(3)]
    ingest(store, made[0])
    sent = [(one.read_bytes(), one.header()) for one in [*made, made[1]]]
    assert [one.duplicate for one in store.ingest_together(sent)] == [True, False, False, False]
    assert (count(store), count(store, "segments")) == (300, 3)
    assert all(one.duplicate for one in store.ingest_together(sent))
    assert (count(store), count(store, "segments")) == (300, 3)


def test_of_segments_sent_together_none_is_stored_where_one_is_refused(store: Store, spool: Spool) -> None:
    good, bad = (spool.append("events", rows(100, BOX, 1 + 100 * i), BOX) for i in range(2))
    with pytest.raises(SegmentError):
        store.ingest_together([(good.read_bytes(), good.header()), (bad.read_bytes()[:-9], bad.header())])
    assert (count(store), count(store, "segments")) == (0, 0)


def test_one_segment_is_one_part(store: Store, spool: Spool) -> None:
    store._engine.command("SYSTEM STOP MERGES events")
    for first in (1, 70_001):
        ingest(store, spool.append("events", rows(70_000, BOX, first), BOX))
    parts = store.select(
        "SELECT rows FROM system.parts WHERE database = currentDatabase() AND table = 'events' AND active"
    )
    assert parts["rows"].to_pylist() == [70_000, 70_000]


def test_a_segment_that_is_damaged_foreign_or_disagrees_is_refused_for_good(
    store: Store, spool: Spool
) -> None:
    made = spool.append("events", rows(10, BOX), BOX)
    content = made.read_bytes()
    with pytest.raises(SegmentError, match="damaged"):
        store.ingest(content[:-9] + b"x" * 9, made.header())
    with pytest.raises(SegmentError, match="does not agree"):
        store.ingest(content, replace(made, rows=9).header())
    with pytest.raises(SegmentError, match="does not exist"):
        ingest(store, spool.append("segments", pa.table({"x": [1]}), None))
    with pytest.raises(SegmentError, match="has not"):
        ingest(store, spool.append("steps", pa.table({"x": [1]}), None))
    assert count(store) == 0


def test_bytes_that_are_no_text_survive_and_the_view_shows_them_apart(store: Store, spool: Spool) -> None:
    ingest(store, spool.append("events", rows(len(WORDS) * 5, BOX), BOX, origin=Origin("run", "r'1")))
    raw = store.query("SELECT DISTINCT path FROM events")
    assert sorted(raw["path"].to_pylist()) == sorted(WORDS)
    frame = results.to_pandas(raw)
    assert sorted(str(v).encode("utf-8", "surrogateescape") for v in frame["path"]) == sorted(WORDS)
    shown = store.query("SELECT DISTINCT path FROM events_readable")["path"].to_pylist()
    assert "/tmp/\\xff\\xfe\\x0a'\"\\x5c`" in shown and "/tmp/\\xe2\\x80\\xaetx" in shown
    assert len(shown) == len(WORDS) and all(word.isprintable() for word in shown)
    found = store.query(f"SELECT count() AS n FROM events WHERE path = unhex('{WORDS[2].hex()}')")
    assert found["n"][0].as_py() == len(WORDS)


def test_the_readable_view_names_what_the_record_numbers(store: Store, spool: Spool) -> None:
    ingest(store, spool.append("events", rows(5, BOX), BOX, origin=Origin("run", "r1", 2, 10**18)))
    [_, second, *_] = store.query("SELECT * FROM events_readable ORDER BY seq").to_pylist()
    expected = {"kind": "open", "class": "file", "phase": "agent", "actor": "agent", "tiers": ["tracepoint"]}
    expected |= {"address": "10.0.0.1", "port": 443, "run_id": "run", "rollout_id": "r1", "attempt": 2}
    assert {name: second[name] for name in expected} == expected
    assert second["wall_time"].value == 10**18 + second["time_ns"]
    assert second["sandbox_id"] == str(BOX)


def test_migrations_are_applied_once_and_a_changed_one_is_refused(store: Store, tmp_path: Path) -> None:
    assert store.migrate() == []
    copied = tmp_path / "schema"
    shutil.copytree(migrations.SCHEMA, copied)
    changed = copied / "002_records.sql"
    changed.write_text(changed.read_text() + "-- changed\n")
    with pytest.raises(StoreError, match=r"002_records\.sql was changed"):
        migrations.apply(store._engine, copied)
    changed.unlink()
    with pytest.raises(StoreError, match="newer invigilator"):
        migrations.apply(store._engine, copied)


def test_the_database_is_atomic(store: Store, target: str) -> None:
    """So that a table or view is replaced in one step."""
    name = target.rpartition("/")[2] if target.startswith("http") else "invigilator"
    found = store._engine.select(
        f"SELECT engine = 'Atomic' AS yes FROM system.databases WHERE name = '{name}'"
    )
    assert found["yes"].to_pylist() == [1]


def test_a_migration_cut_short_is_finished_by_the_next_start(target: str) -> None:
    store = Store.open(target)
    store._engine.command(migrations.migrations()[0].statements()[0])
    assert "001_events.sql" in store.migrate()
    assert count(store) == 0
    store.close()


def test_a_view_follows_its_file(store: Store, tmp_path: Path) -> None:
    copied = tmp_path / "schema"
    shutil.copytree(migrations.SCHEMA, copied)
    view = copied / "views" / "coverage_current.sql"
    view.write_text(view.read_text().replace("SELECT *", "SELECT *, 1 AS extra"))
    assert migrations.apply(store._engine, copied) == ["coverage_current.sql"]
    assert "extra" in store._read_columns()["coverage_current"]


def test_a_table_that_does_not_fit_the_event_record_is_found_at_open(store: Store) -> None:
    store._engine.command("ALTER TABLE events DROP COLUMN owner")
    with pytest.raises(StoreError, match="owner is missing"):
        store.migrate()


def test_old_days_are_dropped_and_young_ones_stay(store: Store, spool: Spool) -> None:
    made = spool.append("events", rows(10, BOX), BOX)
    for days in (0, 20):
        store.ingest(aged(made, days)[1])
    assert count(store) == 20
    store.set_retention("events", 10)
    store._engine.command("OPTIMIZE TABLE events FINAL")
    assert count(store) == 10
    with pytest.raises(StoreError, match="no retention"):
        store.set_retention("segments", 1)


def test_every_column_is_documented_and_the_page_is_up_to_date(store: Store) -> None:
    undocumented = [
        f"{row['table']}.{row['column']}"
        for row in store.describe().to_pylist()
        if not row["meaning"] and not row["table"].endswith(("_readable", "_current", "_judged", "_feed"))
    ]
    assert undocumented == []
    page = Path(__file__).resolve().parents[2] / "docs" / "tables.md"
    assert page.read_text() == tables.document(store), (
        "run python -m invigilator.incidents.tables > docs/tables.md"
    )


HOLD = """
import sys, time
from invigilator.incidents.store import Store
store = Store.open(sys.argv[1])
print("open", flush=True)
time.sleep(60)
"""


def test_a_store_held_by_another_process_names_it(
    tmp_path: Path, child: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = child(HOLD, tmp_path)
    assert holder.stdout is not None and holder.stdout.readline() == "open\n"
    with pytest.raises(StoreUnavailableError, match=rf"in use by process {holder.pid} .*stop it, or ask it"):
        Store.open(tmp_path)
    holder.kill()
    holder.wait(10)
    store = Store.open(tmp_path)
    store.migrate()
    store.close()


def test_a_target_that_is_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="http"):
        Store.open("postgres://x")
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        Store.open("http://127.0.0.1:1")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.open(tmp_path / "file")
