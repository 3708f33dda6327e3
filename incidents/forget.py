"""Taking out of the store what a rollout or a project left in it, for good.

First the sandboxes go on a list, then their rows go, table by table. Whatever comes late, from a node that
was cut off, is taken out by the next `sweep`; so is what an earlier end left.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from invigilator.incidents.engine import Engine

OF_BOXES = (
    "incidents", "penalties", "steps", "coverage", "events", "activity", "rollouts", "sandboxes"
)  # fmt: skip
"""Tables whose rows name their sandbox; what others are found by goes last."""
_GONE = "sandbox_id IN (SELECT sandbox_id FROM forgotten)"
CONDITIONS = {
    "reviews": f"incident_id IN (SELECT incident_id FROM incidents WHERE {_GONE})",
    "deliveries": f"(run_id, rollout_id) IN (SELECT run_id, rollout_id FROM sandboxes WHERE {_GONE})",
    **dict.fromkeys(OF_BOXES, _GONE),
}
_SYNC = {"mutations_sync": 2}
_BOXES = """
SELECT DISTINCT sandbox_id, run_id, rollout_id FROM (
    SELECT sandbox_id, run_id, rollout_id, labels FROM sandboxes
    UNION ALL SELECT sandbox_id, run_id, rollout_id, labels FROM rollouts
    UNION ALL SELECT sandbox_id, run_id, rollout_id, CAST(map(), 'Map(String, String)') FROM events
    WHERE {rollout:String} != '' AND rollout_id = {rollout:String}
)
WHERE if({rollout:String} != '', rollout_id = {rollout:String} AND ({any:UInt8} = 1 OR run_id = {run:String}),
         {project:String} != '' AND labels['project'] = {project:String})
"""


@dataclass(frozen=True, slots=True)
class Meant:
    """What is to be forgotten: a rollout, of a run or of all, or else a project (label `project`)."""

    rollout_id: str = ""
    run_id: str | None = None
    project: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A sandbox that has rows in the store."""

    sandbox_id: UUID
    run_id: str
    rollout_id: str


def boxes(engine: Engine, meant: Meant) -> list[Box]:
    """The sandboxes of what is meant."""
    found: pa.Table = engine.select(
        _BOXES,
        {
            "rollout": meant.rollout_id,
            "any": int(meant.run_id is None),
            "run": meant.run_id or "",
            "project": meant.project,
        },
    )
    ids = [
        value if isinstance(value, UUID) else UUID(bytes=value) for value in found["sandbox_id"].to_pylist()
    ]
    names = zip(found["run_id"].to_pylist(), found["rollout_id"].to_pylist(), strict=True)
    return [Box(box, run.decode(), rollout.decode()) for box, (run, rollout) in zip(ids, names, strict=True)]


def forget(engine: Engine, found: list[Box]) -> dict[str, int]:
    """Take all rows of sandboxes out, for good; how many by table."""
    for start in range(0, len(found), 1000):
        ids = ", ".join(f"(toUUID('{box.sandbox_id}'))" for box in found[start : start + 1000])
        engine.command(f"INSERT INTO forgotten (sandbox_id) VALUES {ids}")
    return sweep(engine)


def sweep(engine: Engine) -> dict[str, int]:
    """Take out rows of forgotten sandboxes that came late, or that an earlier end left; how many by table."""
    if not _count(engine, "forgotten", "1"):
        return {}
    gone: dict[str, int] = {}
    for table, condition in CONDITIONS.items():
        if count := _count(engine, table, condition):
            engine.command(f"ALTER TABLE {table} DELETE WHERE {condition}", None, _SYNC)
            gone[table] = count
    return gone


def _count(engine: Engine, table: str, condition: str) -> int:
    counted: int = engine.select(f"SELECT count() AS n FROM {table} WHERE {condition}")["n"][0].as_py()
    return counted
