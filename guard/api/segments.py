"""POST /v1/segments: one spool segment, stored exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated

import pyarrow as pa
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.metrics import Metrics
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.traffic import BODY_BYTES_MAX, SEGMENT_BYTES_MAX, too_large
from invigilator.incidents.segment import Segment, SegmentError
from invigilator.incidents.store import SERVICE_TABLES

router = APIRouter(prefix="/v1", tags=["ingest"])
TOGETHER_MAX = 64
ENCODING = "zstd"
_PIECE_BYTES = 1 << 20
_log = logging.getLogger("invigilator.serve")


class Stored(BaseModel):
    """A segment is in the store. `duplicate`: it already was."""

    segment_id: str
    rows: int
    duplicate: bool


@router.post("/segments")
async def store_segment(
    request: Request, response: Response, caller: Annotated[Caller, Depends(needs("ingest"))]
) -> Stored:
    """Store the Arrow file in the body, whose header is also sent as `X-Segment`.

    Answered only once it is durable; sending it again changes nothing. 422: it will never be taken, set it
    aside. 503: the store is down, send it again. `Content-Encoding: zstd` is understood.
    """
    response.headers["Accept-Encoding"] = ENCODING
    header = request.headers.get("x-segment")
    if not header:
        raise ProblemError(422, "invalid-segment", "header X-Segment must hold the segment's header as JSON")
    return (await _store(request, caller, [(await _body(request, SEGMENT_BYTES_MAX), header)]))[0]


@router.post("/segments/together")
async def store_segments(
    request: Request, response: Response, caller: Annotated[Caller, Depends(needs("ingest"))]
) -> list[Stored]:
    """Store several small segments as if each were sent by itself, for less.

    The body: for each its header as one line of JSON, then its Arrow file, of the header's `size_bytes`. 422:
    one of them will never be taken, and none was stored; send each by itself to learn which.
    `Content-Encoding: zstd` is understood.
    """
    response.headers["Accept-Encoding"] = ENCODING
    return await _store(request, caller, _parts(await _body(request, BODY_BYTES_MAX)))


async def _body(request: Request, limit: int) -> bytes:
    """The body, unpacked; what unpacks to more than a body may have is refused before it does."""
    body = await request.body()
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding != ENCODING:
        fix = f"send it as it is, or as {ENCODING}"
        raise ProblemError(415, "unknown-encoding", f"the encoding {encoding[:40]!r} is not known", fix=fix)
    return await asyncio.to_thread(_unpack, body, limit)


def _unpack(body: bytes, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), ENCODING) as source:
            while piece := source.read(min(left + 1, _PIECE_BYTES)):
                left -= len(piece)
                if left < 0:
                    raise too_large(limit)
                pieces.append(piece)
    except (pa.ArrowException, OSError) as error:
        raise ProblemError(422, "invalid-segment", f"the body is no whole {ENCODING} stream") from error
    return b"".join(pieces)


def _parts(body: bytes) -> list[tuple[bytes, str]]:
    parts: list[tuple[bytes, str]] = []
    at = 0
    try:
        while at < len(body):
            line = body.index(b"\n", at)
            header = body[at:line].decode()
            end = line + 1 + max(0, Segment.from_header(header).size_bytes)
            parts.append((body[line + 1 : end], header))
            at = end
    except (ValueError, SegmentError) as error:
        raise ProblemError(422, "invalid-segment", f"no header of a segment: {error}") from error
    if not 0 < len(parts) <= TOGETHER_MAX:
        raise ProblemError(422, "invalid-segment", f"between 1 and {TOGETHER_MAX} segments go together")
    return parts


def refuse_forged(segment: Segment) -> None:
    """422 for rows that the service alone makes: a node could else review its own incidents."""
    if segment.table in SERVICE_TABLES:
        raise ProblemError(422, "invalid-segment", f"rows of {segment.table} are made by the service alone")


async def _store(request: Request, caller: Caller, parts: Sequence[tuple[bytes, str]]) -> list[Stored]:
    gate: StoreGate = request.app.state.gate
    metrics: Metrics = request.app.state.metrics
    try:
        sent = [(content, Segment.from_header(header)) for content, header in parts]
        for _, segment in sent:
            refuse_forged(segment)
        done = await gate.run(lambda store: store.ingest_together(sent))
    except SegmentError as error:
        metrics.refused()
        _log.warning("segment refused from %s: %s", caller.name, error)
        raise ProblemError(422, "invalid-segment", str(error)) from error
    for one, (content, segment) in zip(done, sent, strict=True):
        metrics.stored(segment.table, one.rows, len(content), duplicate=one.duplicate)
    return [Stored(segment_id=one.segment_id, rows=one.rows, duplicate=one.duplicate) for one in done]
