"""Down to the trainer's advantages: a dropped rollout has none, no gradient, and no part in its group."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
from test_contract import EXPECTED

KNOWN = [one for one in EXPECTED.values() if one is not None]


def expected(epsilon: float, *, by_spread: bool = True) -> list[float]:
    """GRPO's advantages of the known rewards alone; 0 for the others."""
    mean, spread = statistics.fmean(KNOWN), statistics.stdev(KNOWN)
    scale = spread + epsilon if by_spread else 1.0
    return [0.0 if one is None else (one - mean) / scale for one in EXPECTED.values()]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_in_trl_a_dropped_rollout_leaves_its_group(check: Callable[..., dict[str, Any]], scale: str) -> None:
    told = check("trl")
    assert told["advantages"][scale] == pytest.approx(expected(1e-4, by_spread=scale != "none"), abs=1e-4)
    assert told["gradient"] == 0.0


def test_in_trl_without_the_guard_the_cheat_gains(check: Callable[..., dict[str, Any]]) -> None:
    advantages = check("trl")["advantages"]
    assert advantages["plain"][1] > 0 > advantages["group"][1]


def test_in_verl_a_dropped_rollout_leaves_its_group_and_the_loss(
    check: Callable[..., dict[str, Any]],
) -> None:
    told = check("verl", "mask")
    assert told["advantages"] == pytest.approx(expected(1e-6), abs=1e-4)
    assert told["gradient"] == 0.0 < told["others"]


def test_in_verifiers_a_dropped_rollout_s_trace_has_an_error(check: Callable[..., dict[str, Any]]) -> None:
    told = check("verifiers")
    assert told["errors"] == {name: reward is None for name, reward in EXPECTED.items()}
    assert {one for rewards in told["unscored"].values() for one in rewards} == {None}
    assert "flood" in told["told"][0]
    assert told["metrics"] == {"invigilator_penalty/call-7": -2.0}


def test_inspect_s_own_mean_leaves_dropped_samples_out(check: Callable[..., dict[str, Any]]) -> None:
    for how in ("scorer", "edit"):
        assert check("inspect", how)["mean"] == pytest.approx(statistics.fmean(KNOWN), abs=1e-6)


def test_an_edit_in_inspect_says_who_and_why_and_keeps_what_was(check: Callable[..., dict[str, Any]]) -> None:
    told = check("inspect", "edit")
    assert (told["edited"], told["before"], told["author"]) == (6, 1.0, "invigilator")
    assert told["why"]


def test_skyrl_s_last_step_tells_what_each_step_took_off(check: Callable[..., dict[str, Any]]) -> None:
    metadata = check("skyrl")["metadata"]
    assert metadata == {"mine": 1, "invigilator": {"penalty": -2.0, "by_step": {"call-7": -2.0}}}
