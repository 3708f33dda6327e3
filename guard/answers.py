"""What the service answers, as its clients read it: one definition for both, which needs pydantic alone."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from invigilator.incidents.records import PenaltyReason, PolicyVersions


class RolloutPenalty(BaseModel):
    """The penalty of a rollout's latest attempt.

    `value` ≤ 0, or None where it is not known: then `drop` is set too. `bound`: the value is proven, but
    evidence is missing and there may be more. `drop`: mask the rollout, and leave it out of group statistics.
    `status`: `final`, `partial` (evidence is missing), `failed` (infrastructure), `unavailable` (no verdict).
    `by_step`: step id → its share of the value. `versions`: of the policy that judged.
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


class Penalties(BaseModel):
    """One entry a rollout asked for, in the order asked."""

    penalties: list[RolloutPenalty]
