"""A batch of penalties on the wire between our own service and client: by column, what recurs said once.

Tens of thousands of answers cost a tenth of what a list of objects does, in bytes and in time, on both sides.
"""

from __future__ import annotations

import contextlib
import gc
import json
import operator
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from invigilator.guard.answers import RolloutPenalty, construct
from invigilator.incidents.records import PenaltyReason, PolicyVersions

COMPACT = "application/vnd.invigilator.penalties+json"
"""Media type; the service answers so to those who accept it."""
SHARED = ("versions", "detectors", "enforcement", "unwatched", "as_of")
"""Fields whose few values stand in a table of their own; the column has their places in it."""
RARE = ("by_step", "reasons")
"""Fields that most answers have empty: only the others stand there, by their place."""
PLAIN: dict[str, tuple[type, ...]] = {
    "rollout_id": (str,),
    "run_id": (str, type(None)),
    "attempt": (int, type(None)),
    "value": (float, type(None)),
    "bound": (bool,),
    "drop": (bool,),
    "status": (str,),
    "failure": (str, type(None)),
    "revision": (int,),
    "watermark": (int, type(None)),
    "group": (str, type(None)),
}
"""Fields as they are, and what their values may be."""
_SHARES = TypeAdapter(dict[int, dict[str, float]])
_REASONS = TypeAdapter(dict[int, list[PenaltyReason]])


def encode(penalties: Sequence[RolloutPenalty]) -> bytes:
    """The answers of a batch."""
    names = (*PLAIN, *SHARED, *RARE, "recorded_at")
    # One pass over the objects, not one a field: the processor's cache holds none of them for long.
    values = zip(*map(operator.itemgetter(*names), (one.__dict__ for one in penalties)), strict=True)
    columns: dict[str, Sequence[Any]] = dict(zip(names, values, strict=False)) or dict.fromkeys(names, ())
    by_step, reasons = columns.pop("by_step"), columns.pop("reasons")
    rare = {
        "by_step": {place: shares for place, shares in enumerate(by_step) if shares},
        "reasons": {place: [one.__dict__ for one in terms] for place, terms in enumerate(reasons) if terms},
    }
    columns["recorded_at"] = [at and at.isoformat() for at in columns["recorded_at"]]
    tables: dict[str, list[Any]] = {}
    for name in SHARED:
        tables[name], columns[name] = _shared(columns[name])
    tables["versions"] = [one and one.model_dump() for one in tables["versions"]]
    tables["as_of"] = [one and one.isoformat() for one in tables["as_of"]]
    return json.dumps({"tables": tables, "columns": columns, "rare": rare}, separators=(",", ":")).encode()


def decode(content: bytes) -> list[RolloutPenalty]:
    """Inverse of `encode`; ValueError for anything else."""
    try:
        with uncollected():
            return _decode(json.loads(content))
    except (KeyError, TypeError, IndexError, AttributeError, ValidationError) as error:
        raise ValueError(f"no batch of penalties: {error}") from error


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: tens of thousands of new objects, none of them garbage, would set off
    several, each through all that a trainer holds."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _decode(found: dict[str, Any]) -> list[RolloutPenalty]:
    columns: dict[str, list[Any]] = found["columns"]
    for name, kinds in PLAIN.items():
        if not set(map(type, columns[name])) <= {*kinds}:
            raise ValueError(f"{name} is not what it should be")
    count = len(columns["rollout_id"])
    tables = found["tables"]
    tables["versions"] = [one and PolicyVersions(**one) for one in tables["versions"]]
    tables["as_of"] = _times(tables["as_of"])
    for name in SHARED:
        columns[name] = list(map(tables[name].__getitem__, columns[name]))
    rare = found["rare"]
    columns["by_step"] = [{} for _ in range(count)]
    columns["reasons"] = [[] for _ in range(count)]
    for place, shares in _SHARES.validate_python(rare["by_step"]).items():
        columns["by_step"][place] = shares
    for place, reasons in _REASONS.validate_python(rare["reasons"]).items():
        columns["reasons"][place] = reasons
    columns["recorded_at"] = _times(columns["recorded_at"])
    columns["enforcement_differs"] = [False] * count
    return construct(columns)


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
