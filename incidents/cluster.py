"""The schema for a ClickHouse cluster, rendered from the same numbered files that `Store.migrate` applies.

Each table becomes `NAME_local` (Replicated…MergeTree) on every replica and a Distributed table `NAME` over
the shards, so that queries and views are the same as on one server. A sandbox's rows are on one shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from invigilator.incidents import migrations
from invigilator.incidents.engine import DATABASE, StoreError
from invigilator.incidents.migrations import SchemaFile

KEEPER_PATH = "/clickhouse/tables/{shard}/{database}/{table}"
WHOLE_PATH = "/clickhouse/tables/all/{database}/{table}"
"""Of a table that every host has whole: the ledger of schema files."""
_SHARD_KEYS = ("sandbox_id", "incident_id", "segment_id", "name", "detector_id")
"""What rows are placed by: the first of these that the table has."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREATE = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)")
_FEED = re.compile(r"^CREATE MATERIALIZED VIEW (\w+) TO (\w+) AS", re.MULTILINE)
_ALTER = re.compile(r"^ALTER TABLE (\w+)")
_VIEW = re.compile(r"^CREATE VIEW (\w+)")
_COMMENTS = re.compile(r"^--.*\n", re.MULTILINE)


def render(cluster: str, database: str = DATABASE) -> list[str]:
    """The statements, in order, for a cluster of that name (as `remote_servers` has it) without such tables.
    StoreError for names that are none."""
    for name in (cluster, database):
        if not _NAME.fullmatch(name):
            raise StoreError(f"{name!r} is no name: letters, digits and _ only")
    where = f"ON CLUSTER {cluster}"
    files = [SchemaFile(0, "ledger", migrations.LEDGER), *migrations.migrations()]
    given = [_COMMENTS.sub("", text).strip() for file in files for text in file.statements()]
    tables = {found.group(1): text for text in given if (found := _CREATE.match(text))}
    return [
        f"CREATE DATABASE IF NOT EXISTS {database} {where} ENGINE = Atomic",
        f"USE {database}",
        *(made for text in given for made in _local(text, where)),
        *(_distributed(name, text, cluster, database) for name, text in tables.items()),
        *(_view(text, where) for view in migrations.views() for text in view.statements()),
        *_ledger_rows(),
    ]


def script(cluster: str, database: str = DATABASE) -> str:
    """The statements as one text for `clickhouse-client --multiquery`."""
    return "".join(f"{text};\n\n" for text in render(cluster, database))


def _local(statement: str, where: str) -> Iterator[str]:
    if found := _CREATE.match(statement):
        yield _replicated(found.group(1), statement, where)
    elif found := _FEED.match(statement):
        name, target = found.groups()
        rest = re.sub(r"\bFROM (\w+)", r"FROM \1_local", statement[found.end() :])
        yield f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name} {where} TO {target}_local AS{rest}"
    elif found := _ALTER.match(statement):
        yield f"ALTER TABLE {found.group(1)}_local {where}{statement[found.end() :]}"
    elif not statement.startswith("INSERT"):  # what fills a roll-up from rows that a new cluster has not
        raise StoreError(f"no way is known to put this on a cluster: {statement[:80]}")


def _replicated(name: str, statement: str, where: str) -> str:
    path = WHOLE_PATH if name == "migrations" else KEEPER_PATH
    replica = "{shard}-{replica}" if name == "migrations" else "{replica}"
    text = _CREATE.sub(f"CREATE TABLE IF NOT EXISTS {name}_local {where}", statement, count=1)
    text = re.sub(
        r"\bENGINE = (\w*)MergeTree\b", rf"ENGINE = Replicated\1MergeTree('{path}', '{replica}')", text
    )
    return text.replace("non_replicated_deduplication_window", "replicated_deduplication_window")


def _distributed(name: str, statement: str, cluster: str, database: str) -> str:
    columns = set(re.findall(r"^ {4}(\w+) ", statement, re.MULTILINE))
    key = "segment_id" if name == "segments" else next(one for one in _SHARD_KEYS if one in columns)
    return (
        f"CREATE TABLE IF NOT EXISTS {name} ON CLUSTER {cluster} AS {name}_local "
        f"ENGINE = Distributed('{cluster}', '{database}', '{name}_local', sipHash64({key}))"
    )


def _view(statement: str, where: str) -> str:
    text = _COMMENTS.sub("", statement).strip()
    return _VIEW.sub(rf"CREATE OR REPLACE VIEW \1 {where}", text, count=1)


def _ledger_rows() -> Iterator[str]:
    for file in [*migrations.migrations(), *migrations.views()]:
        yield (
            "INSERT INTO migrations_local (number, name, checksum) "
            f"VALUES ({file.number}, '{file.name}', '{file.checksum}')"
        )
