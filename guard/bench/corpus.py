"""A store as large as wanted, of recorded sandboxes: the kept corpus's events and the verdicts on them, again
and again under other names. The copies are made inside the store, by the column."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from invigilator.detectors.behaviour import KEPT
from invigilator.detectors.engine import Engine
from invigilator.ebpf.sensor import Loss
from invigilator.guard.order import SandboxOrder
from invigilator.guard.progress import Progress
from invigilator.guard.verdict import Course, Evidence, judge
from invigilator.incidents import engine as engines
from invigilator.incidents.corpora import loader
from invigilator.incidents.rows import report_rows
from invigilator.incidents.segment import Segment
from invigilator.incidents.spool import Spool
from invigilator.incidents.stamp import Origin, events_with_origin
from invigilator.incidents.store import Store
from invigilator.profiles import library

COPIED = ("events", "rollouts", "sandboxes", "penalties", "coverage", "incidents")
"""Tables whose rows are copied; policies and detectors stand for all copies."""
RUN = "base"
RUNS = 20
"""Runs that the copies belong to."""
SECONDS_APART = 7
COPIES_A_STATEMENT = 40
"""About a million events."""


def recorded_rows() -> dict[str, pa.Table]:
    """By table: the rows of every recorded sandbox, its events and the verdict on them."""
    parts: dict[str, list[pa.Table]] = {}
    for case in loader.load(KEPT):
        for table, rows in _rows_of(case).items():
            parts.setdefault(table, []).append(rows)
    return {table: pa.concat_tables(rows) for table, rows in parts.items()}


def _rows_of(case: loader.Case) -> dict[str, pa.Table]:
    record, batch = case.record, case.events()
    policy = library.load_text(record.policy).policy if "\n" in record.policy else library.load(record.policy)
    order = SandboxOrder(policy=policy, rollout_id=case.name, run_id=RUN, labels={"task": record.method})
    engine = Engine(policy, record.sandbox_id, record.wall_offset_ns)
    engine.feed(batch)
    last = int(batch.records["seq"][-1])
    engine.feed_loss({}, last)
    engine.finish()
    evidence = Evidence(engine.incidents(), True, Loss(last, 0), len(batch), len(batch), last)
    report = judge(order, Course(str(record.sandbox_id), Progress(), {}), evidence)
    origin = Origin(RUN, case.name, 1, record.wall_offset_ns)
    events = events_with_origin(batch.to_arrow(record.sandbox_id.bytes), origin)
    return {"events": events, **report_rows(report, wall_offset_ns=record.wall_offset_ns)}


def ingest(store: Store, spool: Spool) -> None:
    """Everything that waits in a spool, into a store."""
    for segment in spool.pending():
        store.ingest(segment.read_bytes(), segment.header())
        spool.acknowledge(segment)


@dataclass(frozen=True, slots=True)
class Filled:
    """A store that was filled: its size, and sandboxes and rollouts to ask for."""

    events: int
    rollouts: int
    some: Sequence[tuple[str, str]]
    """(sandbox id, rollout id)"""


def fill(target: str, folder: Path, events: int) -> Filled:
    """Make a store of about that many events at `target`, an empty one; `folder` is for the spool."""
    spool = Spool(folder / "spool")
    store = Store.open(target)
    try:
        store.migrate()
        rows = recorded_rows()
        for table, values in rows.items():
            spool.append(table, values, None)
        recorded = rows["events"].num_rows
        ingest(store, spool)
        columns = {table: [*store.columns()[table]] for table in COPIED}
    finally:
        store.close()
        spool.close()
    copy(target, columns, max(0, round(events / recorded) - 1))
    return counted(target)


def copy(target: str, columns: dict[str, list[str]], copies: int) -> None:
    """Add so many copies of the recorded sandboxes, each with ids and a time of its own."""
    engine = engines.connect(target)
    try:
        for table in COPIED:
            engine.command(f"DROP TABLE IF EXISTS bench_{table}")
            recorded = f"CREATE TABLE bench_{table} ENGINE = Memory AS SELECT * FROM {table}"
            engine.command(f"{recorded} WHERE run_id = '{RUN}'")
        for first in range(1, copies + 1, COPIES_A_STATEMENT):
            count = min(COPIES_A_STATEMENT, copies + 1 - first)
            for table in COPIED:
                engine.command(_statement(table, columns[table], first, count))
        for table in COPIED:
            engine.command(f"DROP TABLE bench_{table}")
    finally:
        engine.close()


_OTHER_ID = "reinterpretAsUUID(sipHash128({column}, n))"
_OTHERWISE = {
    "sandbox_id": _OTHER_ID,
    "segment_id": _OTHER_ID,
    "incident_id": "lower(hex(sipHash128({column}, n)))",
    "rollout_id": "concat({column}, '~', toString(n))",
    "run_id": f"concat('run-', toString(n % {RUNS}))",
    **dict.fromkeys(
        ("wall_time", "started_at", "ended_at", "recorded_at", "first_at", "last_at"),
        f"{{column}} + toIntervalSecond({SECONDS_APART} * n)",
    ),
}
"""What differs between a recorded sandbox and its n-th copy."""


def _statement(table: str, columns: Sequence[str], first: int, count: int) -> str:
    chosen = [f"{_OTHERWISE.get(name, '{column}').format(column=name)} AS {name}_" for name in columns]
    copies = f"(SELECT number AS n FROM numbers({first}, {count})) AS copies"
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) "
        f"SELECT {', '.join(chosen)} FROM bench_{table} CROSS JOIN {copies}"
    )


def counted(target: str, some: int = 200) -> Filled:
    """What is in a store."""
    store = Store.open(target)
    try:
        events = int(store.select("SELECT count() AS n FROM events")["n"][0].as_py())
        rollouts = int(store.select("SELECT count() AS n FROM rollouts")["n"][0].as_py())
        sql = (
            "SELECT toString(sandbox_id) AS box, rollout_id FROM rollouts "
            f"ORDER BY sipHash64(sandbox_id) LIMIT {some}"
        )
        rows = store.select(sql).to_pylist()
    finally:
        store.close()
    return Filled(events, rollouts, [(row["box"].decode(), row["rollout_id"].decode()) for row in rows])


def big_segments(spool: Spool, segments: int, copies: int) -> list[Segment]:
    """Segments of events into a spool, each of `copies` of the whole corpus under other sandbox ids."""
    made = []
    batches = [(case.name, case.record.wall_offset_ns, case.events()) for case in loader.load(KEPT)]
    for _ in range(segments):
        parts = [
            events_with_origin(batch.to_arrow(uuid.uuid4().bytes), Origin(RUN, name, 1, offset))
            for _ in range(copies)
            for name, offset, batch in batches
        ]
        made.append(spool.append("events", pa.concat_tables(parts), None))
    return made
