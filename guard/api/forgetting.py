"""POST /v1/forget: a rollout's or a project's rows, taken out of every table for good."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from invigilator.guard.api import audit
from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.problem import ProblemError, ambiguous_rollout
from invigilator.incidents.forget import Box, Meant
from invigilator.incidents.store import Store, StoreError

router = APIRouter(prefix="/v1", tags=["forget"])
Forgetter = Annotated[Caller, Depends(needs("forget"))]
Name = Annotated[str, Field(max_length=1024)]
SWEEP_EVERY_S = 30.0
NAMED = 50
"""So many rollouts are named in the answer and the audit."""
_log = logging.getLogger("invigilator.serve")


class Order(BaseModel):
    """What to forget: `rollout_id`, with `run_id` where several runs have it, or else `project`. `dry_run`:
    say what it would be."""

    model_config = ConfigDict(extra="forbid")

    rollout_id: Name = ""
    run_id: Name | None = None
    project: Name = ""
    dry_run: bool = False


class Forgotten(BaseModel):
    """What was forgotten. `rollouts`: the first of them, by name; `rows`: how many of each table."""

    sandboxes: int
    rollouts: list[str]
    rows: dict[str, int]


@router.post("/forget")
async def forget(request: Request, caller: Forgetter, order: Order) -> Forgotten:
    """Take all rows of a rollout or a project out of the store, and whatever of them comes late. What was on
    record in the audit stays there."""
    if bool(order.rollout_id) == bool(order.project) or (order.project and order.run_id is not None):
        detail = "name either a rollout (and its run) or a project"
        raise ProblemError(422, "invalid-request", detail)
    gate: StoreGate = request.app.state.gate
    meant = Meant(order.rollout_id, order.run_id, order.project)
    found = await gate.run(lambda store: store.boxes(meant))
    names = chosen(found, order)
    if order.dry_run:
        return Forgotten(sandboxes=len(found), rollouts=names, rows={})
    subject = f"project {order.project}" if order.project else f"rollout {order.rollout_id}"
    before = {
        "sandboxes": len(found),
        "rollouts": names,
        "runs": sorted({box.run_id for box in found})[:NAMED],
    }
    await audit.tell(request, action="forget", subject=subject, before=before)
    rows = await gate.run(lambda store: store.forget(found))
    return Forgotten(sandboxes=len(found), rollouts=names, rows=rows)


def chosen(found: list[Box], order: Order) -> list[str]:
    """The first names of the rollouts found; 404 for none, 409 where it is not clear which is meant."""
    if not found:
        raise ProblemError(404, "nothing-to-forget", "nothing of it is in the store")
    runs = sorted({box.run_id for box in found})
    if order.rollout_id and order.run_id is None and len(runs) > 1:
        raise ambiguous_rollout(order.rollout_id, runs)
    return sorted({box.rollout_id for box in found})[:NAMED]


async def keep_forgetting(gate: StoreGate) -> None:
    """Take out what comes late of what was forgotten, again every half minute; until cancelled."""
    while True:
        if gate.state == "ready":
            try:
                if gone := await gate.run(Store.sweep):
                    _log.info("late rows of forgotten rollouts were taken out: %s", gone)
            except (ProblemError, StoreError) as error:
                _log.warning("forgotten rows wait to be taken out: %s", error)
        await asyncio.sleep(SWEEP_EVERY_S)
