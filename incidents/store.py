"""The store: every row exactly once, and the queries on them.

store = Store.open("/var/lib/invigilator/store")      # or http://user:password@host:8123
store.migrate()
store.ingest(segment.read_bytes(), segment.header())
store.query("SELECT kind, count() FROM incidents_current GROUP BY kind").to_pandas()
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from invigilator.incidents import migrations, readonly, results, segment
from invigilator.incidents.engine import (
    Engine,
    Limits,
    StoreError,
    StoreUnavailableError,
    connect,
)
from invigilator.incidents.segment import Segment, SegmentError

__all__ = ["Ingested", "Limits", "Store", "StoreError", "StoreUnavailableError"]

TABLES = (
    "events",
    "incidents",
    "penalties",
    "rollouts",
    "sandboxes",
    "steps",
    "policies",
    "detectors",
    "reviews",
    "coverage",
)
"""Tables that segments may bring rows to."""


_LEDGER_ROW = """
INSERT INTO segments (segment_id, table_name, rows, bytes, sha256, schema_version, sandbox_id, first_seq,
                      last_seq, node_id, boot_id, number, wall_offset_ns, day)
VALUES ({id:UUID}, {table:String}, {rows:UInt64}, {bytes:UInt64}, {sha:String}, {version:UInt16},
        {box:Nullable(UUID)}, {first:UInt64}, {last:UInt64}, {node:UUID}, {boot:UUID}, {number:UInt64},
        {offset:Int64}, {day:Date})
"""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of a segment; `duplicate`: the store had it already."""

    segment_id: str
    rows: int
    duplicate: bool


class Store:
    """The tables, in a folder (chDB) or at a server's URL. Any thread may call; queries wait for each other
    only, all else for all else."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._guard = threading.RLock()
        self._reading = threading.Lock()
        self._columns: dict[str, dict[str, str]] = {}

    @classmethod
    def open(cls, target: str | Path) -> Store:
        """Open a folder or a URL. StoreUnavailableError where it is locked or down, saying by whom or why."""
        return cls(connect(target))

    def migrate(self) -> list[str]:
        """Bring the schema to this version; the names of the files applied (none when it was there)."""
        with self._guard:
            applied = migrations.apply(self._engine)
            self._columns = self._read_columns()
            migrations.check_events_table(self._columns.get("events", {}))
            return applied

    def ingest(self, content: bytes, header: str | Segment | None = None) -> Ingested:
        """Store a segment's rows exactly once, however often it is sent, and whatever was killed before.

        `header` is what came along (`Segment.header()`); it must agree with the file. SegmentError for bytes
        that will never be taken (quarantine them); StoreUnavailableError for another try later.
        """
        sent = Segment.from_header(header) if isinstance(header, str) else header
        found, rows = segment.decode(content, sent.sha256 if sent else None)
        if sent is not None and sent != found:
            raise SegmentError(f"the header sent with segment {found.id} does not agree with the segment")
        with self._guard:
            self._check_columns(found, rows.column_names)
            if self._ledger_has(found):
                return Ingested(str(found.id), found.rows, True)
            interrupted = self._rows_of(found) > 0
            if interrupted:
                self._repair(found)
            else:
                self._insert(found, rows.column_names, content)
            self._write_ledger(found)
            return Ingested(str(found.id), found.rows, interrupted)

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, limits: Limits | None = None
    ) -> pa.Table:
        """Result of a user's SELECT over the tables and views; nothing else can be read, and nothing written.

        Columns of text are strings, or binary where a value is not UTF-8 (`results.to_pandas` keeps them).
        StoreError says what was not allowed, or which of `limits` was passed.
        """
        with self._guard:
            known = frozenset(self.columns())
        statement = readonly.admit(sql, known)
        limits = limits or Limits()
        # Readers have sessions of their own: a slow question of a user's holds up no segment.
        with self._reading:
            described = self._engine.read(f"DESCRIBE TABLE ({statement})", parameters, limits)
            return results.readable(
                self._engine.read(results.select(statement, described), parameters, limits)
            )

    def select(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Result of a query of this program's own, without limits; text comes as binary."""
        with self._guard:
            return self._engine.select(sql, parameters)

    def columns(self) -> dict[str, dict[str, str]]:
        """Table or view → column → ClickHouse type; what `query` may read."""
        if not self._columns:
            self._columns = self._read_columns()
        return self._columns

    def describe(self) -> pa.Table:
        """Every column that `query` may read: table, column, type, meaning."""
        return results.readable(
            self._engine.select(
                "SELECT table, name AS column, type, comment AS meaning FROM system.columns "
                "WHERE database = currentDatabase() AND NOT startsWith(table, '.') ORDER BY table, position"
            )
        )

    def set_retention(self, table: str, days: int) -> None:
        """Keep rows of `table` for `days` after their spooling; older days are dropped whole."""
        if table not in (*TABLES, "activity") or days < 1:
            raise StoreError(f"no retention of {days} days for {table}: name one of {', '.join(TABLES)}")
        with self._guard:
            self._engine.command(f"ALTER TABLE {table} MODIFY TTL day + INTERVAL {int(days)} DAY")

    def close(self) -> None:
        """End it; another process can open the folder then."""
        with self._guard, self._reading:
            self._engine.close()

    def _read_columns(self) -> dict[str, dict[str, str]]:
        rows = self._engine.select(
            "SELECT table, name, type FROM system.columns WHERE database = currentDatabase() "
            "AND NOT startsWith(table, '.') ORDER BY table, position"
        )
        found: dict[str, dict[str, str]] = {}
        for row in rows.to_pylist():
            found.setdefault(row["table"].decode(), {})[row["name"].decode()] = row["type"].decode()
        return found

    def _check_columns(self, found: Segment, names: list[str]) -> None:
        if found.table not in TABLES:
            raise SegmentError(f"segment {found.id} is for table {found.table!r}, which does not exist")
        missing = set(names) - set(self.columns()[found.table])
        if missing:
            raise SegmentError(
                f"segment {found.id} has columns that {found.table} has not: {sorted(missing)}"
            )

    def _ledger_has(self, found: Segment) -> bool:
        sql = "SELECT count() AS n FROM segments WHERE segment_id = {id:UUID}"
        return bool(self._engine.select(sql, {"id": str(found.id)})["n"][0].as_py())

    def _rows_of(self, found: Segment) -> int:
        """Rows of the segment in its table although the ledger does not know it: all (one part), or none."""
        where = "day = {day:Date} AND segment_id = {id:UUID}"
        parameters: dict[str, Any] = {"id": str(found.id), "day": found.day.isoformat()}
        if found.table == "events" and found.ranges:  # one look-up by the table's key instead of a search
            where += " AND sandbox_id = {box:UUID} AND seq = {seq:UInt64}"
            box, span = next(iter(found.ranges.items()))
            parameters |= {"box": str(box), "seq": span.first}
        counted = self._engine.select(f"SELECT count() AS n FROM {found.table} WHERE {where}", parameters)
        return int(counted["n"][0].as_py())

    def _insert(self, found: Segment, names: list[str], content: bytes) -> None:
        settings: dict[str, str | int] = {
            "insert_deduplication_token": str(found.id),
            "insert_deduplicate": 1,
            "deduplicate_blocks_in_dependent_materialized_views": 1,
            "async_insert": 0,
            "max_insert_threads": 1,
            "max_partitions_per_insert_block": 1,
            "throw_on_max_partitions_per_insert_block": 1,
            "materialized_views_ignore_errors": 0,
        }
        self._engine.insert(found.table, names, content, settings)

    def _repair(self, found: Segment) -> None:
        """Complete what a crash between table and roll-up left out; harmless where nothing is missing."""
        if found.table == "events":
            self._engine.command(
                "INSERT INTO activity "
                "SELECT sandbox_id, kind, phase, actor, segment_id, day, count(), countIf(result < 0), "
                "min(wall_time), max(wall_time) FROM events "
                "WHERE day = {day:Date} AND segment_id = {id:UUID} "
                "GROUP BY sandbox_id, kind, phase, actor, segment_id, day",
                {"id": str(found.id), "day": found.day.isoformat()},
            )

    def _write_ledger(self, found: Segment) -> None:
        self._engine.command(
            _LEDGER_ROW,
            {
                "id": str(found.id),
                "table": found.table,
                "rows": found.rows,
                "bytes": found.size_bytes,
                "sha": found.sha256,
                "version": found.schema_version,
                "box": None if found.sandbox_id is None else str(found.sandbox_id),
                "first": found.first_seq,
                "last": found.last_seq,
                "node": str(found.node_id),
                "boot": str(found.boot_id),
                "number": found.number,
                "offset": found.wall_offset_ns,
                "day": found.day.isoformat(),
            },
        )
