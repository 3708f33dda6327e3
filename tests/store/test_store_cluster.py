"""The schema for a cluster: what is rendered is what the real engine understands."""

from __future__ import annotations

import re

import pytest

from invigilator.incidents import cluster, migrations
from invigilator.incidents.store import Store, StoreError


def test_the_engine_parses_every_statement(store: Store) -> None:
    for text in cluster.render("dsec"):
        assert store.select("SELECT formatQuery({text:String}) AS parsed", {"text": text}).num_rows == 1
    with pytest.raises(StoreError, match="yntax"):
        store.select("SELECT formatQuery({text:String}) AS parsed", {"text": "CREATE TABLE x ON CLUSTER ("})


def test_on_one_host_without_keeper_the_statements_run_and_the_views_answer(target: str) -> None:
    """What needs several hosts is left out: ON CLUSTER, replication, Distributed (Merge stands for it)."""
    store = Store.open(target)
    for text in cluster.render("dsec")[2:]:
        text = text.replace(" ON CLUSTER dsec", "")
        text = re.sub(r"Replicated(\w*MergeTree)\([^)]*\)", r"\1", text)
        text = re.sub(
            r"Distributed\('dsec', 'invigilator', ('\w+'), .*\)$", r"Merge(currentDatabase(), \1)", text
        )
        store._engine.command(text)
    for ask in (store.migrate, store.unapplied):
        with pytest.raises(StoreError, match="does not write through Distributed tables yet"):
            ask()
    views = [view.name.removesuffix(".sql") for view in migrations.views()]
    for name in views:
        assert store.query(f"SELECT count() AS n FROM {name}")["n"].to_pylist() == [0]
    store.close()


def test_every_table_is_replicated_and_reached_through_a_distributed_one() -> None:
    statements = cluster.render("dsec", "guard")
    text = "\n".join(statements)
    tables = re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)_local ON CLUSTER dsec", text)
    assert {"events", "activity", "incidents", "penalties", "segments", "migrations"} <= set(tables)
    for name in tables:
        over = rf"EXISTS {name} ON CLUSTER dsec AS {name}_local ENGINE = Distributed\('dsec', 'guard', "
        assert re.search(over + rf"'{name}_local', sipHash64\(\w+\)\)", text), name
    engines = re.findall(r"ENGINE = (\w+)", text)
    assert set(engines) == {"Atomic", "Distributed", "ReplicatedMergeTree", "ReplicatedReplacingMergeTree"}
    assert "non_replicated" not in text
    assert re.search(r"TO activity_local AS\sSELECT [^;]*FROM events_local GROUP BY", text)
    for changed in re.findall(r"ALTER TABLE (\w+)", text):
        assert changed.endswith("_local")


def test_a_sandboxs_rows_are_on_one_shard() -> None:
    text = "\n".join(cluster.render("dsec"))
    for name in (
        "events",
        "activity",
        "incidents",
        "penalties",
        "rollouts",
        "sandboxes",
        "steps",
        "coverage",
    ):
        assert f"'{name}_local', sipHash64(sandbox_id))" in text


def test_what_is_applied_stands_in_the_ledger() -> None:
    text = "\n".join(cluster.render("dsec"))
    for file in [*migrations.migrations(), *migrations.views()]:
        assert f"'{file.name}', '{file.checksum}'" in text


@pytest.mark.parametrize("name", ["a b", "x; DROP TABLE events", "'", ""])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(StoreError, match="no name"):
        cluster.render(name)
    with pytest.raises(StoreError, match="no name"):
        cluster.render("dsec", name)
