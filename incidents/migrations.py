"""The schema: numbered `.sql` files, applied once each, never changed; views, made anew when they differ."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from invigilator.ebpf import events
from invigilator.incidents.engine import Engine, StoreError

SCHEMA = Path(__file__).parent / "schema"

LEDGER = """
CREATE TABLE IF NOT EXISTS migrations (
    number UInt32 COMMENT 'Number of the file; 0 for views',
    name String COMMENT 'Name of the file',
    checksum String COMMENT 'SHA-256 of its text',
    applied_at DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'When'
) ENGINE = MergeTree ORDER BY (number, name)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Schema files that were applied.'
"""


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """One file of the schema, its placeholders filled in. `number` is 0 for a view."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self) -> list[str]:
        """Its statements; each ends with a semicolon at the end of a line."""
        return [part.strip() for part in re.split(r";[ \t]*(?:\n|$)", self.text) if part.strip()]


def migrations(folder: Path = SCHEMA) -> list[SchemaFile]:
    """The numbered files, in order."""
    return [SchemaFile(int(p.name[:3]), p.name, p.read_text()) for p in sorted(folder.glob("[0-9]*.sql"))]


def views(folder: Path = SCHEMA) -> list[SchemaFile]:
    """The views, in order of name, the names of kinds, classes, tiers … filled in from the event record."""
    return [SchemaFile(0, p.name, fill(p.read_text())) for p in sorted((folder / "views").glob("*.sql"))]


def apply(engine: Engine, folder: Path = SCHEMA) -> list[str]:
    """Bring the store to this version; the names of the files applied. StoreError where it cannot be.

    A migration that was cut short is started again: its `CREATE TABLE`s skip what is there.
    """
    _refuse_distributed(engine)
    engine.command(LEDGER)
    applied = _applied(engine)
    done = list(_apply_migrations(engine, folder, applied))
    migrated = bool(done)
    for view in views(folder):
        if migrated or applied.get(view.name) != view.checksum:
            for statement in view.statements():
                engine.command(statement.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1))
            _record(engine, view)
            done.append(view.name)
    return done


def unapplied(engine: Engine, folder: Path = SCHEMA) -> list[str]:
    """Names of the numbered files that `apply` would apply."""
    _refuse_distributed(engine)
    found = engine.select("SELECT name FROM system.tables WHERE database = currentDatabase()")
    has_ledger = b"migrations" in found["name"].to_pylist()
    applied = _applied(engine) if has_ledger else {}
    return [file.name for file in migrations(folder) if file.name not in applied]


def _refuse_distributed(engine: Engine) -> None:
    """A segment that only some shards took would pass for stored: the ledger is not made for it yet."""
    found = engine.select("SELECT name FROM system.tables WHERE database = currentDatabase()")
    if b"events_local" in found["name"].to_pylist():
        raise StoreError(
            "this is a cluster's database, and the store does not write through Distributed tables yet: "
            "name a database on one server"
        )


def _apply_migrations(engine: Engine, folder: Path, applied: dict[str, str]) -> Iterator[str]:
    files = migrations(folder)
    unknown = sorted(name for name in applied if name[:3].isdigit() and name not in {f.name for f in files})
    if unknown:
        raise StoreError(
            f"the store was made by a newer invigilator (it has {unknown[-1]}): upgrade this one"
        )
    for file in files:
        if file.name in applied:
            if applied[file.name] != file.checksum:
                raise StoreError(
                    f"migration {file.name} was changed after it was applied to this store: restore it, "
                    "and put the change into a new one with the next number"
                )
            continue
        for statement in file.statements():
            engine.command(_repeatable(statement))
        _record(engine, file)
        yield file.name


def _repeatable(statement: str) -> str:
    return re.sub(
        r"\bCREATE (TABLE|MATERIALIZED VIEW) (?!IF)", r"CREATE \1 IF NOT EXISTS ", statement, count=1
    )


def _applied(engine: Engine) -> dict[str, str]:
    rows = engine.select("SELECT name, argMax(checksum, applied_at) AS sum FROM migrations GROUP BY name")
    return {row["name"].decode(): row["sum"].decode() for row in rows.to_pylist()}


def _record(engine: Engine, file: SchemaFile) -> None:
    engine.command(
        "INSERT INTO migrations (number, name, checksum) "
        "VALUES ({number:UInt32}, {name:String}, {sum:String})",
        {"number": file.number, "name": file.name, "sum": file.checksum},
    )


_NAMED = {
    "kinds": events.Kind,
    "classes": events.EventClass,
    "phases": events.Phase,
    "actors": events.Actor,
    "abis": events.Abi,
}


def fill(text: str) -> str:
    """Replace `{{kinds(column)}}`, `{{tiers(column)}}` … by the expression that decodes the column's numbers,
    and `{{printable(column)}}` by one that shows any bytes unambiguously."""

    def expression(found: re.Match[str]) -> str:
        what, column = found.group(1), found.group(2)
        if what in _NAMED:
            return _decode_number(column, {m.value: m.name.lower() for m in _NAMED[what]})
        if what in ("tiers", "flags"):
            return _decode_bits(column, events.Tier if what == "tiers" else events.Flag)
        if what == "printable":
            return _printable(column)
        raise StoreError(f"unknown placeholder {what} in a view")

    return re.sub(r"\{\{(\w+)\(([^}]*)\)\}\}", expression, text)


def _decode_number(column: str, names: dict[int, str]) -> str:
    numbers = ", ".join(map(str, names))
    words = ", ".join(f"'{name}'" for name in names.values())
    return f"transform({column}, [{numbers}], [{words}], toString({column}))"


def _decode_bits(column: str, bits: type[events.Tier] | type[events.Flag]) -> str:
    words = ", ".join(f"'{bit.name.lower()}'" for bit in bits if bit.name)
    masks = ", ".join(str(bit.value) for bit in bits)
    return f"arrayFilter((w, m) -> bitAnd({column}, m) != 0, [{words}], [{masks}])"


def _printable(column: str) -> str:
    # Backslashes, controls and formatting characters (which can reverse what a terminal shows) are escaped,
    # and then everything that is not plain ASCII, so that two different byte strings never look the same.
    plain = f"isValidUTF8({column}) AND NOT match({column}, '[\\\\p{{C}}\\\\x{{2028}}\\\\x{{2029}}\\\\\\\\]')"
    byte = "reinterpretAsUInt8(b)"
    escaped = (
        f"arrayStringConcat(arrayMap(b -> if({byte} BETWEEN 32 AND 126 AND b != '\\\\', b, "
        f"concat('\\\\x', lower(hex(b)))), "
        f"arrayMap(i -> substring({column}, i, 1), range(1, length({column}) + 1))))"
    )
    return f"if({plain}, {column}, {escaped})"


_ARROW_TO_CLICKHOUSE = {
    pa.uint8(): {"UInt8"},
    pa.uint16(): {"UInt16"},
    pa.uint32(): {"UInt32"},
    pa.uint64(): {"UInt64"},
    pa.int64(): {"Int64"},
    pa.binary(16): {"UUID", "IPv6"},
    pa.dictionary(pa.int32(), pa.binary()): {"String", "LowCardinality(String)"},
}


def check_events_table(columns: dict[str, str]) -> None:
    """StoreError unless `columns` (name → ClickHouse type) can hold every field of the event record."""
    wrong = [
        f"{field.name} is {columns.get(field.name, 'missing')}"
        for field in events.arrow_schema()
        if columns.get(field.name) not in _ARROW_TO_CLICKHOUSE[field.type]
    ]
    if wrong:
        raise StoreError(
            f"table events does not fit the event record ({'; '.join(wrong)}): a migration is missing"
        )
