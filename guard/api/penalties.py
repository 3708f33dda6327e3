"""/v1/penalties: what rollouts cost, for a whole batch in one query."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from invigilator.guard import compact
from invigilator.guard.answers import Penalties, RolloutPenalty, with_differences
from invigilator.guard.api import deliveries, judged
from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.finding import whole
from invigilator.guard.api.gate import Lane, StoreGate
from invigilator.guard.api.metrics import Metrics
from invigilator.guard.api.moment import Moment
from invigilator.guard.api.outbox import Outbox
from invigilator.guard.api.pins import penalty_part, pin_for, repin
from invigilator.guard.api.reading import fetch
from invigilator.guard.api.sandboxes import together
from invigilator.guard.pinned import Pin
from invigilator.incidents.store import Store

ROLLOUTS_MAX = 100_000
ID_LENGTH_MAX = 4096

router = APIRouter(prefix="/v1", tags=["penalties"])
RolloutId = Annotated[str, Field(min_length=1, max_length=ID_LENGTH_MAX)]


class Wanted(BaseModel):
    """Which rollouts. Without `run_id`, rollouts of any run; an id that several runs have is refused.

    `as_of`: the answer as it was at that time, by the store's clock. `penalty_version`: computed by the
    penalty part of that version from what was recorded, whatever version judged then.
    """

    model_config = ConfigDict(extra="forbid")

    rollout_ids: Annotated[list[RolloutId], Field(max_length=ROLLOUTS_MAX)]
    run_id: Annotated[str | None, Field(max_length=ID_LENGTH_MAX)] = None
    as_of: datetime | None = None
    penalty_version: Annotated[str | None, Field(max_length=100)] = None


@router.post("/penalties", response_model=Penalties)
async def penalties(
    wanted: Wanted, request: Request, caller: Annotated[Caller, Depends(needs("verdicts"))]
) -> Response:
    """The penalties of a list of rollouts. A value is never 0 because something is missing: that is null."""
    gate: StoreGate = request.app.state.gate
    is_compact = compact.COMPACT in request.headers.get("accept", "")
    lane: Lane = "sql" if wanted.as_of or wanted.penalty_version else "main"
    outbox: Outbox = request.app.state.outbox
    metrics: Metrics = request.app.state.metrics

    def work(store: Store) -> Response:
        found = answer(store, wanted)
        metrics.handed_out(one.status for one in found)
        handed = deliveries.rows(found, caller.name, wanted.penalty_version, wanted.as_of)
        if handed is not None:
            # Durable before it is answered; the store has it a second later.
            outbox.spool("deliveries", handed)
        return rendered(found, is_compact)

    return await gate.run(work, lane)


@router.get("/penalties/used")
async def used(
    request: Request,
    caller: Annotated[Caller, Depends(needs("verdicts"))],
    incident_id: str = "",
    run_id: str = "",
) -> dict[str, list[deliveries.Use]]:
    """Which training steps used a penalty that says something else by now: of an incident's rollout, or,
    without one, of all that have an incident which was ever dismissed."""
    gate: StoreGate = request.app.state.gate
    outbox: Outbox = request.app.state.outbox

    def work(store: Store) -> list[deliveries.Use]:
        outbox.flush(store)
        if incident_id:
            meant = whole(store, incident_id, caller)
            rollouts = [(meant["run_id"], meant["rollout_id"])]
        else:
            parameters = {"run_id": run_id, "monitor_only": int(caller.may("monitor_only"))}
            rollouts = [
                (row["run_id"], row["rollout_id"]) for row in fetch(store, "once_dismissed", parameters)
            ]
        return outdated(store, rollouts)

    return {"used": await gate.run(work)}


def outdated(store: Store, rollouts: Collection[tuple[str, str]]) -> list[deliveries.Use]:
    """Who used penalties of these (run, rollout) that say something else by now."""
    told = [
        row
        for row in deliveries.handed_out(store, [rollout for _, rollout in rollouts])
        if (row["run_id"], row["rollout_id"]) in set(rollouts)
    ]
    now: dict[tuple[str, str, str], deliveries.Answer] = {}
    for run, version in sorted({(row["run_id"], row["pinned_version"]) for row in told}):
        names = sorted({row["rollout_id"] for row in told if row["run_id"] == run})
        wanted = Wanted(rollout_ids=names, run_id=run, penalty_version=version or None)
        for one in answer(store, wanted):
            now[run, one.rollout_id, version] = (one.value, one.drop)
    return deliveries.outdated(told, now)


def rendered(found: list[RolloutPenalty], is_compact: bool) -> Response:
    """The answer as our own client reads it, or as anybody does."""
    if is_compact:
        with compact.uncollected():
            return Response(compact.encode(found), media_type=compact.COMPACT)
    whole = Penalties.model_construct(penalties=with_differences(found))
    return Response(whole.model_dump_json(), media_type="application/json")


def answer(store: Store, wanted: Wanted) -> list[RolloutPenalty]:
    """The penalties asked for, in that order."""
    with compact.uncollected():
        return _answer(store, wanted)


def _answer(store: Store, wanted: Wanted) -> list[RolloutPenalty]:
    moment = Moment.of(store, wanted.as_of)
    part = penalty_part(store, wanted.penalty_version) if wanted.penalty_version else None
    rows = judged.rows_of(store, moment, wanted.rollout_ids, wanted.run_id)
    pin = None if part is None else pin_for(store, part, rows["detection"])
    if pin is not None and wanted.penalty_version is not None:
        rows = repin(store, moment, rows, pin, wanted.penalty_version, wanted.run_id)
    found = rollouts_of(store, moment, rows, pin)
    return [
        found.get(name) or RolloutPenalty(rollout_id=name, run_id=wanted.run_id, as_of=moment.at)
        for name in wanted.rollout_ids
    ]


def rollouts_of(
    store: Store, moment: Moment, rows: judged.Columns, pin: Pin | None
) -> dict[str, RolloutPenalty]:
    """The penalty of each rollout that the rows tell of."""
    detectors = judged.detectors_of(store, moment, rows)
    found = judged.by_rollout(judged.penalties_of(rows, detectors, moment))
    return {name: one_of(store, parts, pin) for name, parts in found.items()}


def one_of(store: Store, parts: list[RolloutPenalty], pin: Pin | None) -> RolloutPenalty:
    """The penalty of a rollout from those of its sandboxes."""
    if len(parts) == 1:
        return parts[0]
    return RolloutPenalty.model_validate(together(parts, pin.cap() if pin else cap_of(store, parts)))


def cap_of(store: Store, penalties: Iterable[RolloutPenalty]) -> float | None:
    """The largest penalty that the policy of these allows; None where its text is not known."""
    versions = {one.versions.penalty for one in penalties if one.versions}
    caps = [row["cap"] for version in versions for row in fetch(store, "policy_cap", {"version": version})]
    return max(caps, default=None)
