"""/v1/incidents: what was found, the evidence, and people's decisions on it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from invigilator.guard.api import audit
from invigilator.guard.api.access import PEER_PREFIX, Caller, needs
from invigilator.guard.api.deliveries import Use
from invigilator.guard.api.finding import whole
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.outbox import Outbox
from invigilator.guard.api.penalties import outdated
from invigilator.guard.api.reading import fetch
from invigilator.guard.api.revising import Sandbox, revise
from invigilator.guard.api.rollouts import Limit, Offset, Reader
from invigilator.incidents.records import Penalty, Review
from invigilator.incidents.rows import review_rows
from invigilator.incidents.store import Store

router = APIRouter(prefix="/v1", tags=["incidents"])
Reviewer = Annotated[Caller, Depends(needs("review"))]


class Reviewed(Review):
    """A review as it was stored. `before`, `after`: the sandbox's penalty, of a higher revision where it
    changed; `unchanged_because`: what kept it from being judged anew. `used`: answers that were handed out
    and say something else by now."""

    before: Penalty | None = None
    after: Penalty | None = None
    unchanged_because: str = ""
    used: tuple[Use, ...] = ()


class Decision(BaseModel):
    """What a person decides. `reviewer`: who it is, where the caller is this machine's root."""

    model_config = ConfigDict(extra="forbid")

    decision: Literal["confirm", "dismiss", "comment"]
    comment: Annotated[str, Field(max_length=16_384)] = ""
    reviewer: Annotated[str, Field(max_length=256)] = ""


@router.get("/incidents")
async def incidents(
    request: Request,
    caller: Reader,
    run_id: str = "",
    rollout_id: str = "",
    kind: str = "",
    severity: str = "",
    outcome: str = "",
    review: str = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> dict[str, list[dict[str, Any]]]:
    """Incidents, the latest first; empty filters let all through. `review=none`: those nobody decided on."""
    parameters = {
        "run_id": run_id,
        "rollout_id": rollout_id,
        "kind": kind,
        "severity": severity,
        "outcome": outcome,
        "review": review,
        "monitor_only": int(caller.may("monitor_only")),
        "limit": limit,
        "offset": offset,
    }
    gate: StoreGate = request.app.state.gate
    return {"incidents": await gate.run(lambda store: fetch(store, "incidents", parameters))}


@router.get("/incidents/{incident_id}")
async def incident(request: Request, caller: Reader, incident_id: str) -> dict[str, Any]:
    """One incident with its evidence and what people said of it."""
    gate: StoreGate = request.app.state.gate
    return await gate.run(lambda store: whole(store, incident_id, caller))


@router.post("/incidents/{incident_id}/reviews", status_code=201)
async def review(request: Request, caller: Reviewer, incident_id: str, decision: Decision) -> Reviewed:
    """Decide on an incident, or comment on it. Reviews are kept all; the latest decision holds.

    A dismissal, and its withdrawal, makes a new revision of the rollout's penalty where that changes it; the
    answer tells which training steps used another one.
    """
    on_socket = request.client is not None and request.client.host.startswith(PEER_PREFIX)
    who = decision.reviewer if on_socket and decision.reviewer else caller.name
    made = Review(
        incident_id=incident_id,
        decision=decision.decision,
        reviewer=who,
        comment=decision.comment,
        at=datetime.now(UTC),
    )
    gate: StoreGate = request.app.state.gate
    outbox: Outbox = request.app.state.outbox
    found = await gate.run(lambda store: whole(store, made.incident_id, caller))
    await audit.tell(
        request,
        action="review",
        subject=found["id"],
        before={"decision": found["review"], "reviewer": found["reviewer"]} if found["review"] else None,
        after={"decision": made.decision, "reviewer": made.reviewer, "comment": made.comment},
    )
    return await gate.run(lambda store: keep(store, outbox, made, found), unbound=True)


def keep(store: Store, outbox: Outbox, made: Review, found: dict[str, Any]) -> Reviewed:
    """Store a review of an incident that was found, under its whole id, and what follows from it."""
    meant = made.model_copy(update={"incident_id": found["id"]})
    outbox.put(store, "reviews", review_rows([meant]))
    if meant.decision == "comment":
        return Reviewed(**dict(meant))
    box = Sandbox(found["run_id"], found["rollout_id"], found["sandbox_id"])
    done = revise(store, outbox, box)
    used = outdated(store, [(box.run_id, box.rollout_id)])
    return Reviewed(
        **dict(meant), before=done.before, after=done.after, unchanged_because=done.why, used=tuple(used)
    )
