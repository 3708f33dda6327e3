"""/v1/audit: who changed what, when. `tell` puts a change on record; there is no way to take one off.

await audit.tell(request, action="review", subject=incident_id, before=old, after=new)
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Depends, Query, Request
from pydantic import AwareDatetime, BaseModel

from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.outbox import Outbox
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import fetch
from invigilator.guard.auditing import SUFFIX, row
from invigilator.incidents.rows import rows

router = APIRouter(prefix="/v1", tags=["audit"])
Auditor = Annotated[Caller, Depends(needs("audit"))]
NAMES = uuid.UUID("0c1d8f0a-5d55-4c67-9a41-2a7f1b8e6d10")
LEFT_BYTES_MAX = 1 << 20
PICK_UP_EVERY_S = 1.0
_log = logging.getLogger("invigilator.serve")


class Change(BaseModel):
    """A change on record. `before`, `after`: JSON, "" for nothing."""

    at: datetime
    who: str
    token_id: str
    role: str
    project: str
    action: str
    subject: str
    before: str
    after: str


class Changes(BaseModel):
    """Changes, the latest first."""

    audit: list[Change]


@router.get("/audit")
async def changes(
    request: Request,
    caller: Auditor,
    action: Annotated[str, Query(max_length=256)] = "",
    who: Annotated[str, Query(max_length=1024)] = "",
    subject: Annotated[str, Query(max_length=1024)] = "",
    since: AwareDatetime | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Changes:
    """Changes, the latest first; empty filters let all through."""
    parameters = {
        "action": action,
        "who": who,
        "subject": subject,
        "since_us": 0 if since is None else max(0, int(since.timestamp() * 1e6)),
        "limit": limit,
        "offset": offset,
    }
    gate: StoreGate = request.app.state.gate
    outbox: Outbox = request.app.state.outbox

    def work(store: Any) -> list[dict[str, Any]]:
        if outbox.waiting:
            outbox.flush(store)
        return fetch(store, "audit", parameters)

    return Changes.model_validate({"audit": await gate.run(work)})


async def tell(
    request: Request,
    *,
    action: str,
    subject: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Put a change of the request's caller on record, durably; 503 where the disk is full.

    Call it before the change is made, so that none goes untold. The row reaches the store once.
    """
    caller: Caller = request.state.caller
    outbox: Outbox = request.app.state.outbox
    made = row(caller.name, caller.token_id, caller.role, caller.projects, action, subject, before, after)
    await asyncio.to_thread(outbox.spool, "audit", _table(made))


async def keep_picking_up(folder: Path, outbox: Outbox) -> None:
    """Take what commands left in `folder`, again every second; until cancelled."""
    while True:
        try:
            await asyncio.to_thread(pick_up, folder, outbox)
        except (OSError, ProblemError) as error:
            _log.warning("changes wait to be put on record: %s", error)
        await asyncio.sleep(PICK_UP_EVERY_S)


def pick_up(folder: Path, outbox: Outbox) -> int:
    """Spool what commands left, each under an id that follows from its file's name, so that it is stored once
    whenever this is killed; how many. A damaged file is set aside."""
    taken = 0
    for path in sorted(folder.glob("*" + SUFFIX)):
        try:
            with path.open("rb") as file:
                table = _table(json.loads(file.read(LEFT_BYTES_MAX)))
        except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
            _log.error("%s holds no change: %s", path, error)
            path.rename(path.with_suffix(".damaged"))
            continue
        outbox.spool("audit", table, uuid.uuid5(NAMES, path.name))
        path.unlink()
        taken += 1
    return taken


def _table(made: Mapping[str, str]) -> pa.Table:
    return rows("audit", [{**made, "at": datetime.fromisoformat(made["at"])}])
