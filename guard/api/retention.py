"""GET and PUT /v1/retention: for how many days each table's rows are kept."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from invigilator.guard.api import audit
from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.problem import ProblemError
from invigilator.incidents.store import Store

router = APIRouter(prefix="/v1", tags=["retention"])
DAYS_MOST = 36_500
Auditor = Annotated[Caller, Depends(needs("audit"))]
Forgetter = Annotated[Caller, Depends(needs("forget"))]


class Days(BaseModel):
    """For how many days after their spooling rows are kept; older days go whole."""

    model_config = ConfigDict(extra="forbid")

    days: Annotated[int, Field(ge=1, le=DAYS_MOST)]


class Retention(BaseModel):
    """Table → days; null: for good."""

    tables: dict[str, int | None]


@router.get("/retention")
async def retention(request: Request, caller: Auditor) -> Retention:
    """For how long each table's rows are kept."""
    gate: StoreGate = request.app.state.gate
    return Retention(tables=await gate.run(Store.retention))


@router.put("/retention/{table}")
async def keep(request: Request, caller: Forgetter, table: str, wanted: Days) -> Retention:
    """Keep a table's rows for other than so far. What is older then is dropped, for good."""
    gate: StoreGate = request.app.state.gate
    before = await gate.run(Store.retention)
    if before.get(table) is None:
        kept = ", ".join(name for name, days in before.items() if days is not None)
        raise ProblemError(404, "no-such-table", f"no retention of {table!r}", fix=f"name one of {kept}")
    await audit.tell(
        request,
        action="retention",
        subject=table,
        before={"days": before[table]},
        after={"days": wanted.days},
    )
    await gate.run(lambda store: store.set_retention(table, wanted.days))
    return Retention(tables=await gate.run(Store.retention))
