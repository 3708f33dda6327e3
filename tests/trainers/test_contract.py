"""The same rollouts through every adapter, with the trainers' own packages: same numbers, same left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from common import IDS

EXPECTED = {
    "clean": 1.0,
    "cheat": -1.0,
    "bound": -0.5,
    "flood": None,
    "partial": None,
    "failed": None,
    "absent": None,
}
"""The task's reward less the penalty; None: left out, by a mask or, where there is none, by an error."""
ADAPTERS = [
    ("trl",),
    ("verl", "mask"),
    ("verl", "raise"),
    ("verifiers",),
    ("inspect", "scorer"),
    ("inspect", "edit"),
    ("openrlhf",),
    ("skyrl",),
    ("harbor",),
]


@pytest.mark.parametrize("words", ADAPTERS, ids="-".join)
def test_all_adapters_give_the_same_numbers(
    check: Callable[..., dict[str, Any]], words: tuple[str, ...]
) -> None:
    assert check(*words)["rewards"] == EXPECTED


def test_every_sort_of_verdict_is_asked_for() -> None:
    assert list(EXPECTED) == IDS
