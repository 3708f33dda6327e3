"""/v1/penalties/backtest: recorded rollouts under a penalty policy that judged none of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from invigilator.guard.answers import RolloutPenalty
from invigilator.guard.api import judged
from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.moment import Moment
from invigilator.guard.api.penalties import ID_LENGTH_MAX, ROLLOUTS_MAX, rollouts_of
from invigilator.guard.api.pins import pin_for, repin
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import fetch
from invigilator.incidents.store import Store
from invigilator.profiles.policy import Policy

router = APIRouter(prefix="/v1", tags=["penalties"])


class Trial(BaseModel):
    """Which penalty part, over which rollouts: those that ended since a time, the latest `limit` of them."""

    model_config = ConfigDict(extra="forbid")

    penalty: dict[str, Any]
    since: datetime
    run_id: Annotated[str | None, Field(max_length=ID_LENGTH_MAX)] = None
    limit: Annotated[int, Field(ge=1, le=ROLLOUTS_MAX)] = ROLLOUTS_MAX


class Verdict(BaseModel):
    """What a rollout costs, and of which kinds."""

    value: float | None
    drop: bool
    bound: bool
    costs: dict[str, float]


class Pair(BaseModel):
    """A rollout as it was judged, and as it would have been."""

    run_id: str | None
    rollout_id: str
    labels: dict[str, str]
    group: str | None
    before: Verdict
    after: Verdict


class Tried(BaseModel):
    """`skipped`: rollouts whose policy is not in the store. `more`: there are more than `limit`."""

    rollouts: list[Pair]
    skipped: int
    more: bool


@router.post("/penalties/backtest")
async def backtest(
    trial: Trial, request: Request, caller: Annotated[Caller, Depends(needs("verdicts"))]
) -> Tried:
    """What a penalty policy would have done: recorded incidents of the recorded detection, other weights."""
    gate: StoreGate = request.app.state.gate
    try:
        Policy.model_validate({"name": "trial", "penalty": trial.penalty})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ProblemError(422, "invalid-request", f"body.{place}: {first['msg']}") from error
    if trial.since.tzinfo is None:
        raise ProblemError(422, "invalid-request", "body.since: a time needs its offset, such as Z")
    return await gate.run(lambda store: tried(store, trial), lane="sql")


def tried(store: Store, trial: Trial) -> Tried:
    """The rollouts under both, run by run."""
    parameters = {"since": trial.since.isoformat(), "run_id": trial.run_id or "", "limit": trial.limit + 1}
    listed = fetch(store, "recorded_since", parameters)
    more = len(listed) > trial.limit
    pairs: list[Pair] = []
    for run in dict.fromkeys(row["run_id"] for row in listed[: trial.limit]):
        labels = {row["rollout_id"]: row["labels"] for row in listed[: trial.limit] if row["run_id"] == run}
        pairs += _run(store, trial, run, labels)
    return Tried(rollouts=pairs, skipped=len(listed[: trial.limit]) - len(pairs), more=more)


def _run(store: Store, trial: Trial, run: str, labels: dict[str, dict[str, str]]) -> list[Pair]:
    moment = Moment.of(store, None)
    rows = judged.rows_of(store, moment, labels, run)
    pin = pin_for(store, trial.penalty, rows["detection"], skip_unknown=True)
    lost = {
        name
        for name, detection in zip(rows["rollout_id"], rows["detection"], strict=True)
        if not pin.knows(detection)
    }
    kept = [place for place, name in enumerate(rows["rollout_id"]) if name not in lost]
    rows = {name: [column[place] for place in kept] for name, column in rows.items()}
    before = rollouts_of(store, moment, rows, None)
    after = rollouts_of(store, moment, repin(store, moment, rows, pin, "", run), pin)
    return [
        Pair(
            run_id=run or None,
            rollout_id=name,
            labels=labels[name],
            group=one.group,
            before=_verdict(one),
            after=_verdict(after[name]),
        )
        for name, one in before.items()
    ]


def _verdict(one: RolloutPenalty) -> Verdict:
    costs = {reason.kind: reason.cost for reason in one.reasons}
    return Verdict(value=one.value, drop=one.drop, bound=one.bound, costs=costs)
