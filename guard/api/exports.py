"""/v1/exports: the record in bulk, piece by piece, in the order of a key; who took it is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

import pyarrow as pa
from fastapi import APIRouter, Depends, Request, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.audit import tell
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import STATEMENTS
from invigilator.guard.api.rollouts import ARROW_STREAM, arrow_bytes
from invigilator.guard.which import EPOCH, FAR, microseconds
from invigilator.incidents.migrations import fill
from invigilator.incidents.store import Limits, Store

router = APIRouter(prefix="/v1", tags=["exports"])
Exporter = Annotated[Caller, Depends(needs("export"))]
Subject = Literal["events", "incidents", "rollouts"]
Text = Annotated[str, Field(max_length=1024)]
NO_BOX = UUID(int=0)
ANY_BYTES = frozenset({"path", "path2", "text", "exe"})
"""Columns of events that hold whatever the agent chose; they stay bytes."""
RENAMED = {name + "_name": name for name in ("kind", "class", "phase", "origin_phase", "actor")}


class Place(BaseModel):
    """After which row to go on: the last row's sandbox, and its `seq` or incident."""

    model_config = ConfigDict(extra="forbid")

    sandbox_id: UUID = NO_BOX
    seq: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    incident_id: Text = ""


class Wanted(BaseModel):
    """What to export: empty filters let all through; `kinds` are of events or incidents, `outcome` of
    incidents. `after`: where the piece before ended. `rows`: at most so many."""

    model_config = ConfigDict(extra="forbid")

    run_id: Text = ""
    rollout_id: Text = ""
    labels: Annotated[dict[Text, Text], Field(max_length=16)] = {}
    since: AwareDatetime = EPOCH
    until: AwareDatetime = FAR
    kinds: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=256)] = []
    outcome: Literal["", "denied", "failed", "success"] = ""
    after: Place = Place()
    rows: Annotated[int, Field(ge=1, le=20_000)] = 20_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows in order, as the bytes of an Arrow stream, and how many."""

    content: bytes
    rows: int


MOST_ROWS: dict[Subject, int] = {"events": 20_000, "incidents": 1000, "rollouts": 5000}
"""Of one piece: what fits the limits of a query with the longest texts that occur."""


@router.post("/exports/{subject}", response_class=Response)
async def export(request: Request, caller: Exporter, subject: Subject, wanted: Wanted) -> Response:
    """A piece of an export as an Arrow stream, in the order of its key; ask again with `after` of its last
    row until a piece is empty. Paths and texts of events are bytes; times are nanoseconds since 1970.

    What is exported teaches evasion: every piece is told to the audit, with who took it.
    """
    within(caller, wanted)
    gate: StoreGate = request.app.state.gate
    limits: Limits = request.app.state.limits
    piece = await gate.run(lambda store: take(store, subject, wanted, limits), lane="sql")
    after = {**wanted.model_dump(mode="json"), "exported": piece.rows}
    await tell(request, action="export", subject=subject, after=after)
    return Response(piece.content, media_type=ARROW_STREAM, headers={"x-rows": str(piece.rows)})


def within(caller: Caller, wanted: Wanted) -> None:
    """403 where a caller that is bound to projects asks for more than one of them."""
    bound = caller.projects
    if bound and wanted.labels.get("project") not in bound:
        fix = f"ask for one of them with the label project: {', '.join(bound)}"
        raise ProblemError(403, "other-project", "the token is bound to projects", fix=fix)


def take(store: Store, subject: Subject, wanted: Wanted, limits: Limits) -> Piece:
    """The piece of an export that comes next."""
    statement = fill(STATEMENTS[f"export_{subject}"])
    parameters = {
        "run_id": wanted.run_id,
        "rollout_id": wanted.rollout_id,
        "labels": json.dumps(wanted.labels),
        "since": microseconds(wanted.since),
        "until": microseconds(wanted.until),
        "kinds": json.dumps(wanted.kinds),
        "outcome": wanted.outcome,
        "box": str(wanted.after.sandbox_id),
        "number": wanted.after.seq,
        "id": wanted.after.incident_id,
        "rows": min(wanted.rows, MOST_ROWS[subject]),
    }
    table = shown(store.browse(statement, parameters, limits))
    return Piece(arrow_bytes(table), table.num_rows)


def shown(table: pa.Table) -> pa.Table:
    """A result with the same types in every piece: text, but for what an agent chose the bytes of."""
    columns, names = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        name = RENAMED.get(field.name, field.name)
        columns.append(column if name in ANY_BYTES else _as_text(column))
        names.append(name)
    made = pa.table(columns, names=names)
    times = [name for name in ("wall_time", "first_at", "last_at", "started_at", "ended_at") if name in names]
    for name in times:
        moment = made[name].cast(pa.int64()).cast(pa.timestamp("ns", "UTC"))
        made = made.set_column(made.schema.get_field_index(name), name, moment)
    return made


def _as_text(column: Any) -> Any:
    if pa.types.is_binary(column.type):
        return _decoded(column, pa.string())
    if pa.types.is_list(column.type) and pa.types.is_binary(column.type.value_type):
        return _decoded(column, pa.list_(pa.string()))
    return column


def _decoded(column: Any, kind: pa.DataType) -> Any:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([_words(value) for value in column.to_pylist()], kind)])


def _words(value: Any) -> Any:
    if isinstance(value, list):
        return [_words(one) for one in value]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
