"""Whether a store holds what it must after faults: all that was acknowledged, once; the right penalties."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import replaying

from invigilator.detectors.behaviour import KEPT
from invigilator.incidents.corpora import loader
from invigilator.incidents.rows import report_rows
from invigilator.incidents.store import Store

Rows = list[dict[str, Any]]
PENALTY = ("rollout_id", "attempt", "value", "bound", "drop", "by_step", "reasons")
INCIDENT = (
    "rollout_id",
    "attempt",
    "incident_id",
    "kind",
    "outcome",
    "phase",
    "count",
    "counted",
    "weight",
    "evidence",
)
FOUND = """
SELECT rollout_id, attempt, value, bound, drop, by_step, reasons FROM penalties
WHERE status != 'failed' ORDER BY rollout_id, attempt"""
INCIDENTS = """
SELECT * EXCEPT (segment_id, day, node_id, recorded_at) FROM incidents WHERE (rollout_id, attempt) IN (
    SELECT rollout_id, attempt FROM penalties GROUP BY rollout_id, attempt HAVING max(status = 'failed') = 0)
ORDER BY rollout_id, attempt, incident_id"""


def check_events(store: Store, log: Sequence[dict[str, Any]]) -> int:
    """Every acknowledged segment once, of every sandbox a gapless beginning, of judged ones all: how many."""
    acked = [line for line in log if line["what"] == "ack"]
    assert acked
    once = "SELECT count() AS n FROM (SELECT segment_id FROM segments GROUP BY segment_id HAVING count() > 1)"
    assert one(store, once) == 0
    ledger = {
        row["id"]: row["rows"] for row in ask(store, "SELECT toString(segment_id) AS id, rows FROM segments")
    }
    table = "SELECT toString(segment_id) AS id, count() AS n FROM events GROUP BY id"
    held = {row["id"]: row["n"] for row in ask(store, table)}
    for line in acked:
        assert ledger.get(line["segment"]) == held.get(line["segment"]) == line["rows"], line
    assert {name: n for name, n in ledger.items() if name in held} == held
    stored = {
        row["box"]: row["seqs"]
        for row in ask(
            store,
            "SELECT toString(sandbox_id) AS box, arraySort(groupArray(seq)) AS seqs FROM events GROUP BY box",
        )
    }
    _check_sequences(stored, log, acked)
    rolled_up = "SELECT sum(events) AS n FROM activity_readable"
    total = sum(map(len, stored.values()))
    assert one(store, rolled_up) == one(store, "SELECT count() AS n FROM events") == total
    return total


def _check_sequences(
    stored: dict[str, list[int]], log: Sequence[dict[str, Any]], acked: Sequence[dict[str, Any]]
) -> None:
    done = {(line["rollout"], line["attempt"]) for line in log if line["what"] == "done"}
    least: dict[str, int] = {}
    for line in acked:
        least[line["sandbox"]] = max(line["last"], least.get(line["sandbox"], 0))
    corpus = loader.load(KEPT)
    recorded: dict[str, list[int]] = {}
    for line in log:
        if line["what"] != "begin":
            continue
        case = replaying.case_of(line["rollout"])
        if case not in recorded:
            recorded[case] = corpus.case(case).events().records["seq"].tolist()
        box = str(replaying.sandbox_of(line["rollout"], line["attempt"]))
        found = stored.get(box, [])
        assert found == recorded[case][: len(found)], box
        assert (found[-1] if found else 0) >= least.get(box, 0), box
        if (line["rollout"], line["attempt"]) in done:
            assert found == recorded[case], box


def check_verdicts(store: Store, log: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """One verdict of each attempt that was judged; of all others, if any, that it failed, without value.
    The judged attempts."""
    done = {(line["rollout"], line["attempt"]) for line in log if line["what"] == "done"}
    begun = {(line["rollout"], line["attempt"]) for line in log if line["what"] == "begin"}
    latest = (
        "SELECT rollout_id AS r, attempt AS a, status, value, drop FROM penalties "
        "ORDER BY revision DESC LIMIT 1 BY rollout_id, attempt"
    )
    found = {(row["r"], row["a"]): row for row in ask(store, latest)}
    judged = []
    for which in sorted(begun):
        row = found.get(which)
        if row is not None and row["status"] == "final":
            judged.append(which)
            continue
        # An agent that died between `done` and the removal of the mark had not yet told anybody.
        assert row is not None or which not in done, which
        assert row is None or (row["status"], row["value"], row["drop"]) == ("failed", None, True), row
    current = "SELECT count() AS n, uniqExact(rollout_id) AS u FROM penalties_current"
    [counts] = ask(store, current)
    assert counts["n"] == counts["u"] == len({rollout for rollout, _ in found})
    return judged


def verdicts(store: Store, judged: Sequence[tuple[str, int]]) -> bytes:
    """Penalties and incidents of attempts as bytes that are equal exactly if the verdicts are."""
    wanted = set(judged)
    plain = [
        [row for row in ask(store, sql) if (row["rollout_id"], row["attempt"]) in wanted]
        for sql in (FOUND, INCIDENTS)
    ]
    assert len(plain[0]) == len(wanted)
    return json.dumps(plain, sort_keys=True, default=str).encode()


def check_judged_at_once(store: Store, judged: Sequence[tuple[str, int]]) -> None:
    """That attempts were judged as their events are when they are judged in one piece, without a store."""
    corpus = loader.load(KEPT)
    wanted = set(judged)
    for table, names in (("penalties", PENALTY), ("incidents", INCIDENT)):
        expected: Rows = []
        for which in sorted(wanted):
            report, offset = replaying.verdict_at_once(corpus, *which)
            rows = report_rows(report, wall_offset_ns=offset).get(table)
            expected += [] if rows is None else rows.select(list(names)).to_pylist()
        final = "WHERE (rollout_id, attempt, status) IN (SELECT rollout_id, attempt, 'final' FROM penalties)"
        sql = f"SELECT {', '.join(names)} FROM {table} " + (final if table == "penalties" else "")
        found = [row for row in ask(store, sql) if (row["rollout_id"], row["attempt"]) in wanted]
        assert canonical(found) == canonical([{name: plain(row[name]) for name in names} for row in expected])


def canonical(rows: Rows) -> list[str]:
    """Rows as texts, in an order of their own."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def quarantined(spool: Path) -> list[str]:
    """Names of segments that were set aside."""
    return [path.name for path in (spool / "quarantine").glob("*")]


def ask(store: Store, sql: str) -> Rows:
    """Rows of a query of the test's own."""
    return [{name: plain(value) for name, value in row.items()} for row in store.select(sql).to_pylist()]


def one(store: Store, sql: str) -> int:
    """The one number that a query answers."""
    [row] = ask(store, sql)
    return int(row["n"])


def plain(value: Any) -> Any:
    """Text where the store gives bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value
