"""The store: every row exactly once, and the queries on them.

store = Store.open("/var/lib/invigilator/store")      # or http://user:password@host:8123
store.migrate()
store.ingest(segment.read_bytes(), segment.header())
store.query("SELECT kind, count() FROM incidents_current GROUP BY kind").to_pandas()
"""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from invigilator.incidents import forget as forgetting
from invigilator.incidents import migrations, readonly, results, scope, segment
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
    "deliveries",
    "audit",
    "coverage",
    "falco_alerts",
)
"""Tables that segments may bring rows to."""

SERVICE_TABLES = frozenset({"reviews", "deliveries", "audit", "falco_alerts"})
"""Of these, those whose rows the service makes itself: no node may bring any."""

UNREAD_TABLES = frozenset({"audit", "forgotten"})
"""Tables that no user's query reads."""

RETAINED_TABLES = (*(name for name in TABLES if name != "audit"), "activity")
"""Tables whose old days are dropped."""

_LEDGER_INSERT = """
INSERT INTO segments (segment_id, table_name, rows, bytes, sha256, schema_version, sandbox_id, first_seq,
                      last_seq, node_id, boot_id, number, wall_offset_ns, day)
VALUES """

_LEDGER_VALUES = """(
    {id:UUID}, {table:String}, {rows:UInt64}, {bytes:UInt64}, {sha:String}, {version:UInt16},
    {box:Nullable(UUID)}, {first:UInt64}, {last:UInt64}, {node:UUID}, {boot:UUID}, {number:UInt64},
    {offset:Int64}, {day:Date})"""
"""Each name gets the row's number behind it."""

_RETENTION = r"""
SELECT name, extract(engine_full, 'toIntervalDay\\((\\d+)\\)') AS days FROM system.tables
WHERE database = currentDatabase() AND engine LIKE '%MergeTree' ORDER BY name
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
        self._projects: tuple[str, ...] = ()

    @classmethod
    def open(cls, target: str | Path) -> Store:
        """Open a folder or a URL. StoreUnavailableError where it is locked or down, saying by whom or why."""
        return cls(connect(target))

    def scoped(self, projects: Sequence[str]) -> Store:
        """This store as readers see it who are bound to `projects` (`scope`); the whole store for none. What
        is written through it is not bound."""
        bound = copy.copy(self)
        bound._projects = tuple(projects)
        return bound

    def migrate(self) -> list[str]:
        """Bring the schema to this version; the names of the files applied (none when it was there)."""
        with self._guard:
            applied = migrations.apply(self._engine)
            self._columns = self._read_columns()
            migrations.check_events_table(self._columns.get("events", {}))
            return applied

    def unapplied(self) -> list[str]:
        """Names of the numbered schema files that this version has and the store has not."""
        with self._guard:
            return migrations.unapplied(self._engine)

    def ingest(self, content: bytes, header: str | Segment | None = None) -> Ingested:
        """Store a segment's rows exactly once, however often it is sent, and whatever was killed before.

        `header` is what came along (`Segment.header()`); it must agree with the file. SegmentError for bytes
        that will never be taken (quarantine them); StoreUnavailableError for another try later.
        """
        return self.ingest_together([(content, header)])[0]

    def ingest_together(self, sent: Sequence[tuple[bytes, str | Segment | None]]) -> list[Ingested]:
        """Store several segments, each as `ingest` does: small ones share what a statement costs.
        SegmentError where any is refused; nothing of the call is stored then."""
        decoded = [_decode(content, header) for content, header in sent]
        with self._guard:
            for found, rows in decoded:
                self._check_columns(found, rows.column_names)
            known = self._known_rows([found for found, _ in decoded])
            done: dict[uuid.UUID, Ingested] = {}
            written: list[Segment] = []
            for (found, rows), (content, _) in zip(decoded, sent, strict=True):
                in_ledger, in_table = known[found.id]
                again = in_ledger or found.id in done
                if not again:
                    if in_table:
                        self._repair(found)
                    else:
                        self._insert(found, rows.column_names, content)
                    written.append(found)
                done.setdefault(found.id, Ingested(str(found.id), found.rows, again or in_table > 0))
            if written:
                self._write_ledger(written)
            return [done[found.id] for found, _ in decoded]

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, limits: Limits | None = None
    ) -> pa.Table:
        """Result of a user's SELECT over the tables and views; nothing else can be read, and nothing written.

        Columns of text are strings, or binary where a value is not UTF-8 (`results.to_pandas` keeps them).
        StoreError says what was not allowed, or which of `limits` was passed.
        """
        with self._guard:
            known = frozenset(self.columns()) - UNREAD_TABLES
        statement = readonly.admit(sql, known)
        limits = self._bound(limits or Limits(), of_users=True)
        # Readers have sessions of their own: a slow question of a user's holds up no segment.
        with self._reading:
            described = self._engine.read(f"DESCRIBE TABLE ({statement})", parameters, limits)
            return results.readable(
                self._engine.read(results.select(statement, described), parameters, limits)
            )

    def select(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Result of a query of this program's own, without limits; text comes as binary."""
        kept = scope.filters(self._projects, of_users=False) if self._projects else None
        settings = {"additional_table_filters": scope.setting(kept)} if kept else None
        with self._guard:
            return self._engine.select(sql, parameters, settings)

    def _bound(self, limits: Limits, *, of_users: bool) -> Limits:
        if not self._projects:
            return limits
        return replace(limits, filters=scope.setting(scope.filters(self._projects, of_users=of_users)))

    def browse(self, sql: str, parameters: Mapping[str, Any], limits: Limits) -> pa.Table:
        """Result of a long query of this program's own, in the readers' session, so that it holds up no
        segment; text comes as binary."""
        with self._reading:
            return self._engine.read(sql, parameters, self._bound(limits, of_users=False))

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

    def retention(self) -> dict[str, int | None]:
        """Table → for how many days its rows are kept; None: for good."""
        with self._guard:
            rows = self._engine.select(_RETENTION).to_pylist()
        kept = {row["name"].decode(): row["days"].decode() for row in rows}
        return {
            name: int(kept[name]) if kept[name] else None for name in (*TABLES, "activity") if name in kept
        }

    def set_retention(self, table: str, days: int) -> None:
        """Keep rows of `table` for `days` after their spooling; older days are dropped whole."""
        if table not in RETAINED_TABLES or days < 1:
            named = ", ".join(RETAINED_TABLES)
            raise StoreError(f"no retention of {days} days for {table}: name one of {named}")
        with self._guard:
            self._engine.command(f"ALTER TABLE {table} MODIFY TTL day + INTERVAL {int(days)} DAY")

    def boxes(self, meant: forgetting.Meant) -> list[forgetting.Box]:
        """The sandboxes of a rollout or a project."""
        with self._guard:
            return forgetting.boxes(self._engine, meant)

    def forget(self, found: list[forgetting.Box]) -> dict[str, int]:
        """Take all rows of sandboxes out, for good; how many by table."""
        with self._guard:
            return forgetting.forget(self._engine, found)

    def sweep(self) -> dict[str, int]:
        """Take out what came late of what was forgotten; how many rows by table."""
        with self._guard:
            return forgetting.sweep(self._engine)

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

    def _known_rows(self, segments: Sequence[Segment]) -> dict[uuid.UUID, tuple[bool, int]]:
        """By segment: whether the ledger has it, and how many of its rows are in its table although the
        ledger may not know it: all (one part), or none."""
        parts: list[str] = []
        parameters: dict[str, Any] = {}
        for number, found in enumerate(segments):
            parameters |= {f"id{number}": str(found.id), f"day{number}": found.day.isoformat()}
            this = f"segment_id = {{id{number}:UUID}}"
            where = f"day = {{day{number}:Date}} AND {this}"
            if found.table == "events" and found.ranges:  # one look-up by the table's key instead of a search
                box, span = next(iter(found.ranges.items()))
                where += f" AND sandbox_id = {{box{number}:UUID}} AND seq = {{seq{number}:UInt64}}"
                parameters |= {f"box{number}": str(box), f"seq{number}": span.first}
            parts += [
                f"SELECT {2 * number} AS part, count() AS n FROM segments WHERE {this}",
                f"SELECT {2 * number + 1} AS part, count() AS n FROM {found.table} WHERE {where}",
            ]
        counted = self._engine.select(" UNION ALL ".join(parts), parameters)
        counts = dict(zip(counted["part"].to_pylist(), counted["n"].to_pylist(), strict=True))
        return {
            found.id: (counts[2 * number] > 0, counts[2 * number + 1])
            for number, found in enumerate(segments)
        }

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

    def _write_ledger(self, segments: Sequence[Segment]) -> None:
        rows: list[str] = []
        parameters: dict[str, Any] = {}
        for number, found in enumerate(segments):
            rows.append(_LEDGER_VALUES.replace(":", f"{number}:"))
            parameters |= {f"{name}{number}": value for name, value in _ledger_values(found).items()}
        self._engine.command(_LEDGER_INSERT + ", ".join(rows), parameters)


def _ledger_values(found: Segment) -> dict[str, str | int | None]:
    return {
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
    }


def _decode(content: bytes, header: str | Segment | None) -> tuple[Segment, pa.Table]:
    sent = Segment.from_header(header) if isinstance(header, str) else header
    found, rows = segment.decode(content, sent.sha256 if sent else None)
    if sent is not None and sent != found:
        raise SegmentError(f"the header sent with segment {found.id} does not agree with the segment")
    return found, rows
