"""One verdict from several sandboxes of the same rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from invigilator.guard.answers import RolloutPenalty
    from invigilator.incidents.records import PenaltyReason

WORST_FIRST = ("failed", "partial", "final")


def together(penalties: Sequence[RolloutPenalty], cap: float | None) -> dict[str, Any]:
    """The penalty of a rollout from those of its sandboxes: a kind counts once, at its dearest, up to `cap`.

    Where a sandbox's value is unknown, what the others proved stands as a bound; where nothing was proven,
    the whole is unknown.
    """
    known = [one for one in penalties if one.value is not None]
    reasons = dearest([reason for one in penalties for reason in one.reasons])
    cost = sum(reason.cost for reason in reasons)
    value = None if len(known) < len(penalties) and not cost else -min(cost, cap if cap is not None else cost)
    by_step: dict[str, float] = {}
    for one in penalties:
        for step, share in one.by_step.items():
            by_step[step] = by_step.get(step, 0.0) + share
    total = sum(by_step.values())
    scale = value / total if value is not None and total < value else 1.0
    return {
        **penalties[0].model_dump(),
        "value": value,
        "bound": value is not None and (len(known) < len(penalties) or any(one.bound for one in penalties)),
        "drop": value is None or any(one.drop for one in known),
        "status": min((one.status for one in penalties), key=WORST_FIRST.index),
        "failure": "; ".join(one.failure for one in penalties if one.failure) or None,
        "by_step": {step: share * scale for step, share in by_step.items()},
        "reasons": [reason.model_dump() for reason in reasons],
        "revision": max(one.revision for one in penalties),
        "detectors": {name: version for one in penalties for name, version in one.detectors.items()},
        "watermark": None,
        "enforcement": _enforcement(penalties),
        "unwatched": sorted({name for one in penalties for name in one.unwatched}),
        "recorded_at": max(one.recorded_at for one in penalties if one.recorded_at),
    }


def _enforcement(penalties: Sequence[RolloutPenalty]) -> dict[str, str]:
    """What each tier was in all sandboxes; `mixed` where it differed."""
    states: dict[str, set[str]] = {}
    for tier in sorted({tier for one in penalties for tier in one.enforcement}):
        states[tier] = {one.enforcement.get(tier, "absent") for one in penalties}
    return {tier: found.pop() if len(found) == 1 else "mixed" for tier, found in states.items()}


def dearest(reasons: Sequence[PenaltyReason]) -> list[PenaltyReason]:
    """One reason a kind, the dearest, with the incidents of all."""
    kinds: dict[str, list[PenaltyReason]] = {}
    for reason in reasons:
        kinds.setdefault(reason.kind, []).append(reason)
    return [
        max(same, key=lambda reason: reason.cost).model_copy(
            update={"incidents": [incident for reason in same for incident in reason.incidents]}
        )
        for same in kinds.values()
    ]
