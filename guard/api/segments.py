"""POST /v1/segments: one spool segment, stored exactly once."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.problem import ProblemError
from invigilator.incidents.segment import SegmentError

router = APIRouter(prefix="/v1", tags=["ingest"])
_log = logging.getLogger("invigilator.serve")


class Stored(BaseModel):
    """A segment is in the store. `duplicate`: it already was."""

    segment_id: str
    rows: int
    duplicate: bool


@router.post("/segments")
async def store_segment(request: Request, caller: Annotated[Caller, Depends(needs("ingest"))]) -> Stored:
    """Store the Arrow file in the body, whose header is also sent as `X-Segment`.

    Answered only once it is durable; sending it again changes nothing. 422: it will never be taken, set it
    aside. 503: the store is down, send it again.
    """
    gate: StoreGate = request.app.state.gate
    header = request.headers.get("x-segment")
    if not header:
        raise ProblemError(422, "invalid-segment", "header X-Segment must hold the segment's header as JSON")
    content = await request.body()
    try:
        done = await gate.run(lambda store: store.ingest(content, header))
    except SegmentError as error:
        _log.warning("segment refused from %s: %s", caller.name, error)
        raise ProblemError(422, "invalid-segment", str(error)) from error
    return Stored(segment_id=done.segment_id, rows=done.rows, duplicate=done.duplicate)
