"""The training loop's picture is a picture, and its advantages are GRPO's over the known."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from invigilator.guard.demo.training import picture
from invigilator.guard.demo.training.learner import advantages
from invigilator.guard.demo.training.loop import Step


def step(number: int, cheating: float, *, guarded: bool) -> Step:
    return Step(guarded, 0, number, cheating, cheating, 0.5, -1.0, 0, [1.0])


def test_each_arm_has_its_seeds_and_their_mean() -> None:
    steps = [step(n, 0.6 - 0.1 * n, guarded=True) for n in range(4)]
    steps += [step(n, 0.6 + 0.1 * n, guarded=False) for n in range(4)]
    root = ElementTree.fromstring(picture.svg(steps))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4
    ends = [float(line.get("points", "").split()[-1].split(",")[1]) for line in lines]
    assert ends[0] < ends[2]  # the page counts from its top


@pytest.mark.parametrize("rewards", [[None, None], [1.0, None], [1.0, 1.0, None]])
def test_where_nothing_can_be_compared_nothing_is_learnt(rewards: list[float | None]) -> None:
    assert advantages(rewards).tolist() == [0.0] * len(rewards)


def test_a_dropped_reward_is_in_neither_mean_nor_spread() -> None:
    found = advantages([1.0, None, 0.0, -1.0])
    assert found[1] == 0.0
    assert np.allclose(found[[0, 2, 3]], advantages([1.0, 0.0, -1.0]))
