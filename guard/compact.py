"""A batch of penalties on the wire between our own service and client: by column, what recurs said once.

Tens of thousands of answers cost a tenth of what a list of objects does, in bytes and in time, on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from invigilator.guard.answers import RolloutPenalty, construct
from invigilator.incidents.records import PenaltyReason, PolicyVersions

COMPACT = "application/vnd.invigilator.penalties+json"
"""Media type; the service answers so to those who accept it."""
SHARED = ("versions", "detectors", "enforcement", "unwatched", "as_of")
"""Fields whose few values stand in a table of their own; the column has their places in it."""
NESTED = ("reasons", "recorded_at", "enforcement_differs")
PLAIN: dict[str, tuple[type, ...]] = {
    "rollout_id": (str,),
    "run_id": (str, type(None)),
    "attempt": (int, type(None)),
    "value": (float, type(None)),
    "bound": (bool,),
    "drop": (bool,),
    "status": (str,),
    "failure": (str, type(None)),
    "by_step": (dict,),
    "revision": (int,),
    "watermark": (int, type(None)),
    "group": (str, type(None)),
}
"""Fields as they are, and what their values may be."""
_REASONS = TypeAdapter(list[list[PenaltyReason]])


def encode(penalties: Sequence[RolloutPenalty]) -> bytes:
    """The answers of a batch."""
    columns: dict[str, list[Any]] = {name: [one.__dict__[name] for one in penalties] for name in PLAIN}
    columns["recorded_at"] = [one.recorded_at and one.recorded_at.isoformat() for one in penalties]
    columns["reasons"] = [[reason.__dict__ for reason in one.reasons] for one in penalties]
    tables: dict[str, list[Any]] = {}
    for name in SHARED:
        tables[name], columns[name] = _shared([one.__dict__[name] for one in penalties])
    tables["versions"] = [one and one.model_dump() for one in tables["versions"]]
    tables["as_of"] = [one and one.isoformat() for one in tables["as_of"]]
    return json.dumps({"tables": tables, "columns": columns}, separators=(",", ":")).encode()


def decode(content: bytes) -> list[RolloutPenalty]:
    """Inverse of `encode`; ValueError for anything else."""
    try:
        found = json.loads(content)
        columns: dict[str, list[Any]] = found["columns"]
        tables = found["tables"]
        for name, kinds in PLAIN.items():
            if not set(map(type, columns[name])) <= {*kinds}:
                raise ValueError(f"{name} is not what it should be")
        columns["reasons"] = _REASONS.validate_python(columns["reasons"])
        columns["recorded_at"] = _times(columns["recorded_at"])
        tables["versions"] = [one and PolicyVersions(**one) for one in tables["versions"]]
        tables["as_of"] = _times(tables["as_of"])
        for name in SHARED:
            table = tables[name]
            columns[name] = [table[place] for place in columns[name]]
        columns["enforcement_differs"] = [False] * len(columns["rollout_id"])
        return construct(columns)
    except (KeyError, TypeError, IndexError, AttributeError, ValidationError) as error:
        raise ValueError(f"no batch of penalties: {error}") from error


def _shared(values: Iterable[Any]) -> tuple[list[Any], list[int]]:
    """The distinct objects, and of each value its place among them."""
    places: dict[int, int] = {}
    table: list[Any] = []
    column = []
    for value in values:
        place = places.get(id(value))
        if place is None:
            place = places[id(value)] = len(table)
            table.append(value)
        column.append(place)
    return table, column


def _times(texts: Iterable[str | None]) -> list[datetime | None]:
    return [None if text is None else datetime.fromisoformat(text) for text in texts]
