"""/v1/incidents: what was found, the evidence, and people's decisions on it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from invigilator.guard.api.access import PEER_PREFIX, Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.outbox import Outbox
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import fetch
from invigilator.guard.api.rollouts import Limit, Offset, Reader
from invigilator.incidents.records import Review
from invigilator.incidents.rows import review_rows
from invigilator.incidents.store import Store

ID_DIGITS_MIN = 6
"""So many digits of an incident's id name it, where no other begins with them."""

router = APIRouter(prefix="/v1", tags=["incidents"])
Reviewer = Annotated[Caller, Depends(needs("review"))]


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


def whole(store: Store, incident_id: str, caller: Caller) -> dict[str, Any]:
    """The incident whose id begins so, with evidence and reviews; 404 where the caller may see none."""
    parameters = {"incident_id": incident_id, "monitor_only": int(caller.may("monitor_only"))}
    found = fetch(store, "incident", parameters)
    if found and len(incident_id) < ID_DIGITS_MIN:
        raise ProblemError(
            404,
            "no-such-incident",
            f"{incident_id!r} is too short to tell incidents apart",
            fix=f"give at least {ID_DIGITS_MIN} digits of the id",
        )
    if not found:
        raise ProblemError(404, "no-such-incident", f"there is no incident {incident_id!r}")
    if len(found) > 1 and found[0]["id"] != incident_id:
        raise ProblemError(409, "ambiguous-incident", f"several incidents begin with {incident_id!r}")
    evidence = [json.loads(text) for text in found[0]["evidence"]]
    reviews = fetch(store, "reviews", {"incident_id": found[0]["id"]})
    return {**found[0], "evidence": evidence, "reviews": reviews}


@router.post("/incidents/{incident_id}/reviews", status_code=201)
async def review(request: Request, caller: Reviewer, incident_id: str, decision: Decision) -> Review:
    """Decide on an incident, or comment on it. Reviews are kept all; the latest decision holds."""
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
    return await gate.run(lambda store: keep(store, outbox, made, caller))


def keep(store: Store, outbox: Outbox, made: Review, caller: Caller) -> Review:
    """Store a review of an incident that exists, under the incident's whole id."""
    meant = made.model_copy(update={"incident_id": whole(store, made.incident_id, caller)["id"]})
    outbox.put(store, "reviews", review_rows([meant]))
    return meant
