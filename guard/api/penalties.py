"""/v1/penalties: what rollouts cost, for a whole batch in one query."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from invigilator.guard.answers import Penalties, RolloutPenalty
from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import fetch
from invigilator.guard.api.sandboxes import together
from invigilator.incidents.records import PenaltyReason, PolicyVersions
from invigilator.incidents.store import Store

ROLLOUTS_MAX = 100_000
ID_LENGTH_MAX = 4096

router = APIRouter(prefix="/v1", tags=["penalties"])
RolloutId = Annotated[str, Field(min_length=1, max_length=ID_LENGTH_MAX)]


class Wanted(BaseModel):
    """Which rollouts. Without `run_id`, rollouts of any run; an id that several runs have is refused."""

    model_config = ConfigDict(extra="forbid")

    rollout_ids: Annotated[list[RolloutId], Field(max_length=ROLLOUTS_MAX)]
    run_id: Annotated[str | None, Field(max_length=ID_LENGTH_MAX)] = None


@router.post("/penalties")
async def penalties(
    wanted: Wanted, request: Request, caller: Annotated[Caller, Depends(needs("verdicts"))]
) -> Penalties:
    """The penalties of a list of rollouts. A value is never 0 because something is missing: that is null."""
    gate: StoreGate = request.app.state.gate
    return Penalties(penalties=await gate.run(lambda store: answer(store, wanted)))


def answer(store: Store, wanted: Wanted) -> list[RolloutPenalty]:
    """The penalties asked for, in that order."""
    parameters = {
        "rollout_ids": json.dumps(list(dict.fromkeys(wanted.rollout_ids))),
        "run_id": wanted.run_id or "",
        "any_run": int(wanted.run_id is None),
    }
    rows = fetch(store, "penalties", parameters)
    found = {name: judged(store, list(group)) for name, group in groupby(rows, lambda row: row["rollout_id"])}
    return [
        found.get(name) or RolloutPenalty(rollout_id=name, run_id=wanted.run_id)
        for name in wanted.rollout_ids
    ]


def judged(store: Store, rows: Sequence[dict[str, Any]]) -> RolloutPenalty:
    """The penalty of one rollout from the rows of its attempts and sandboxes, the latest attempt first."""
    runs = sorted({row["run_id"] for row in rows})
    if len(runs) > 1:
        name = rows[0]["rollout_id"]
        detail = f"rollout {name!r} is in {len(runs)} runs: {', '.join(map(repr, runs[:5]))}"
        raise ProblemError(409, "ambiguous-rollout", detail, fix="say which run with run_id")
    latest = [penalty_of(row) for row in rows if row["attempt"] == rows[0]["attempt"]]
    if len(latest) == 1:
        return latest[0]
    return RolloutPenalty.model_validate(together(latest, cap_of(store, latest)))


def penalty_of(row: dict[str, Any]) -> RolloutPenalty:
    """One row of the store."""
    versions = PolicyVersions(
        confinement=row["confinement"], detection=row["detection"], penalty=row["penalty"]
    )
    return RolloutPenalty(
        rollout_id=row["rollout_id"],
        run_id=row["run_id"] or None,
        attempt=row["attempt"],
        value=row["value"],
        bound=row["bound"],
        drop=row["drop"] or row["value"] is None,
        status=row["status"],
        failure=row["failure"] or None,
        by_step=row["by_step"],
        reasons=[PenaltyReason.model_validate_json(reason) for reason in row["reasons"]],
        revision=row["revision"],
        versions=versions,
    )


def cap_of(store: Store, penalties: Iterable[RolloutPenalty]) -> float | None:
    """The largest penalty that the policy of these allows; None where its text is not known."""
    versions = {one.versions.penalty for one in penalties if one.versions}
    caps = [row["cap"] for version in versions for row in fetch(store, "policy_cap", {"version": version})]
    return max(caps, default=None)
