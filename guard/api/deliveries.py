"""What was handed out, and who used a penalty that says something else by now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from invigilator.guard.answers import RolloutPenalty
from invigilator.guard.api.reading import fetch
from invigilator.incidents.columns import COLUMNS
from invigilator.incidents.store import Store

Answer = tuple[float | None, bool]


class Use(BaseModel):
    """Answers of a training step that say something else by now. `rollouts`: how many; `answers`: how often.

    `old_value`, `old_drop`: what was handed out; `new_value`, `new_drop`: what is answered now, under the
    same `penalty_version` where one was asked for.
    """

    run_id: str | None
    train_step: str | None
    checkpoint: str | None
    rollouts: int
    answers: int
    callers: list[str]
    first_at: datetime
    last_at: datetime
    penalty_version: str | None
    old_value: float | None
    old_drop: bool
    new_value: float | None
    new_drop: bool
    rollout_ids: list[str]


ROLLOUTS_NAMED = 20
"""So many of a use's rollouts are named."""


def rows(
    penalties: Sequence[RolloutPenalty], caller: str, pinned: str | None, as_of: datetime | None
) -> pa.Table | None:
    """The rows of `deliveries` for one answer; None where nothing was known."""
    known = [one for one in penalties if one.status != "unavailable"]
    if not known:
        return None
    columns: dict[str, Any] = {
        "answered_at": datetime.now(UTC),
        "caller": caller,
        "run_id": [one.run_id or "" for one in known],
        "rollout_id": [one.rollout_id for one in known],
        "attempt": [one.attempt or 0 for one in known],
        "revision": [one.revision for one in known],
        "value": [one.value for one in known],
        "drop": [one.drop for one in known],
        "pinned_version": pinned or "",
        "as_of": as_of,
    }
    kinds = COLUMNS["deliveries"]
    return pa.table(
        {
            name: pa.array(value, kinds[name])
            if isinstance(value, list)
            else pa.repeat(pa.scalar(value, kinds[name]), len(known))
            for name, value in columns.items()
        }
    )


def handed_out(store: Store, rollout_ids: Iterable[str]) -> list[dict[str, Any]]:
    """What was handed out of rollouts, by rollout, answer and caller."""
    return fetch(store, "deliveries_of", {"rollout_ids": json.dumps(sorted(set(rollout_ids)))})


def outdated(told: Sequence[dict[str, Any]], now: dict[tuple[str, str, str], Answer]) -> list[Use]:
    """The uses of answers that differ from those of `now` (run, rollout, pinned version → value, drop)."""
    grouped: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in told:
        new = now.get((row["run_id"], row["rollout_id"], row["pinned_version"]))
        old = (row["value"], row["drop"])
        if new is not None and new != old:
            key = (row["run_id"], row["train_step"], row["checkpoint"], row["pinned_version"], *old, *new)
            grouped.setdefault(key, []).append(row)
    return [_use(key, same) for key, same in grouped.items()]


def _use(key: tuple[Any, ...], same: Sequence[dict[str, Any]]) -> Use:
    run_id, train_step, checkpoint, version, old_value, old_drop, new_value, new_drop = key
    names = sorted({row["rollout_id"] for row in same})
    return Use(
        run_id=run_id or None,
        train_step=train_step or None,
        checkpoint=checkpoint or None,
        rollouts=len(names),
        answers=sum(int(row["answers"]) for row in same),
        callers=sorted({row["caller"] for row in same}),
        first_at=min(row["first_at"] for row in same),
        last_at=max(row["last_at"] for row in same),
        penalty_version=version or None,
        old_value=old_value,
        old_drop=old_drop,
        new_value=new_value,
        new_drop=new_drop,
        rollout_ids=names[:ROLLOUTS_NAMED],
    )
