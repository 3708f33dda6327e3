"""POST /v1/segments: one spool segment, stored exactly once."""

from __future__ import annotations

import json
import logging
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.problem import ProblemError

router = APIRouter(prefix="/v1", tags=["ingest"])
_log = logging.getLogger("invigilator.serve")


class Stored(BaseModel):
    """A segment is in the store. `duplicate`: it already was."""

    segment_id: str
    rows: int
    duplicate: bool


def segment_header(request: Request) -> dict[str, Any]:
    """The `X-Segment` header's JSON object."""
    try:
        header = json.loads(request.headers.get("x-segment", ""))
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise ProblemError(422, "invalid-segment", "header X-Segment must hold the segment's header as JSON")
    return header


@router.post("/segments")
async def store_segment(request: Request, caller: Annotated[Caller, Depends(needs("ingest"))]) -> Stored:
    """Store the segment in the body. Answered only once it is durable; sending it again changes nothing."""
    gate: StoreGate = request.app.state.gate
    header = segment_header(request)
    body = await request.body()
    return await gate.run(lambda store: _ingest(store, body, header))


def _ingest(store: Any, body: bytes, header: dict[str, Any]) -> Stored:
    result = store.ingest(body, header)
    return Stored(segment_id=str(result.segment_id), rows=result.rows, duplicate=result.duplicate)
