"""What every check asks: the same rollouts with the same rewards of their task."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from invigilator.guard.trainers.core import Judge

TASK = {
    "clean": 1.0, "cheat": 1.0, "bound": 0.5, "flood": 1.0, "partial": 1.0, "failed": 0.0, "absent": 1.0,
}  # fmt: skip
"""Rollout → what its task gave it."""
IDS = list(TASK)


def judge() -> Judge:
    """Of the service that the environment names. A rollout that nobody knows is not waited for."""
    return Judge(on_unavailable="none", max_unknown=None, timeout_s=1.0)


def tell(rewards: Mapping[str, float | None], **more: Any) -> None:
    """Say what came out, as the last line; a reward of None: left out, whichever way the trainer has."""
    known = {name: None if one is None or math.isnan(one) else round(one, 6) for name, one in rewards.items()}
    print(json.dumps({"rewards": known, **more}))
