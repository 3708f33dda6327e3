"""What the service answers, as its clients read it: one definition for both, which needs pydantic alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from invigilator.incidents.records import PenaltyReason, PolicyVersions


class RolloutPenalty(BaseModel):
    """The penalty of a rollout's latest attempt.

    `value` ≤ 0, or None where it is not known: then `drop` is set too. `bound`: the value is proven, but
    evidence is missing and there may be more. `drop`: mask the rollout, and leave it out of group statistics.
    `status`: `final`, `partial` (evidence is missing), `failed` (infrastructure), `unavailable` (no verdict).
    `by_step`: step id → its share of the value. `versions`: of the policy that judged. `detectors`: id →
    version of those that judged and count. `watermark`: every event up to this `seq` was judged; None with
    several sandboxes. `recorded_at`: when this revision was made. `as_of`: the time that the answer is of, by
    the store's clock; asking with it gives the same answer again.

    `enforcement`: tier → what it was (`enforce`, `complain`, `absent`, `off`, `none`; a tier that differed
    between its sandboxes is `mixed`); `unwatched`: classes of events that nobody watched. `group`: label
    `group`, else label `task`. `enforcement_differs`: rollouts of its group in the same batch ran under other
    enforcement, or with other classes watched, so that their rewards do not compare.
    """

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    run_id: str | None = None
    attempt: int | None = None
    value: float | None = None
    bound: bool = False
    drop: bool = True
    status: Literal["final", "partial", "failed", "unavailable"] = "unavailable"
    failure: str | None = None
    by_step: dict[str, float] = {}
    reasons: list[PenaltyReason] = []
    revision: int = 0
    versions: PolicyVersions | None = None
    detectors: dict[str, int] = {}
    watermark: int | None = None
    enforcement: dict[str, str] = {}
    unwatched: list[str] = []
    group: str | None = None
    enforcement_differs: bool = False
    recorded_at: datetime | None = None
    as_of: datetime | None = None


class Penalties(BaseModel):
    """One entry a rollout asked for, in the order asked."""

    penalties: list[RolloutPenalty]


def differing_groups(penalties: Iterable[RolloutPenalty]) -> set[tuple[str | None, str]]:
    """(run, group) of those whose rollouts ran under different enforcement, or with other classes watched."""
    seen: dict[tuple[str | None, str], tuple[dict[str, str], list[str]]] = {}
    differing = set()
    for one in penalties:
        if one.group is not None and one.status != "unavailable":
            key = (one.run_id, one.group)
            if seen.setdefault(key, (one.enforcement, one.unwatched)) != (one.enforcement, one.unwatched):
                differing.add(key)
    return differing


def with_differences(penalties: list[RolloutPenalty]) -> list[RolloutPenalty]:
    """The penalties of a batch with `enforcement_differs` set where it holds."""
    differing = differing_groups(penalties)
    if not differing:
        return penalties
    return [
        one.model_copy(update={"enforcement_differs": True})
        if one.group is not None and (one.run_id, one.group) in differing
        else one
        for one in penalties
    ]


def construct(columns: Mapping[str, Sequence[Any]]) -> list[RolloutPenalty]:
    """Penalties from values known to be right, a sequence for every field: a quarter of the time of checking
    each one, which is what tens of thousands take."""
    fields = set(RolloutPenalty.model_fields)
    if set(columns) != fields:
        raise ValueError(f"columns that are no fields, or lack: {sorted(fields ^ set(columns))}")
    made = []
    for values in zip(*columns.values(), strict=True):
        one = RolloutPenalty.__new__(RolloutPenalty)
        object.__setattr__(one, "__dict__", dict(zip(columns, values, strict=True)))
        object.__setattr__(one, "__pydantic_fields_set__", fields)
        object.__setattr__(one, "__pydantic_extra__", None)
        object.__setattr__(one, "__pydantic_private__", None)
        made.append(one)
    return made
