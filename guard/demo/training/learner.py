"""The agent's table and how it learns: group advantages, from which dropped rollouts are left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Learner:
    """A softmax over `actions` preferences, moved by REINFORCE with group advantages."""

    def __init__(self, actions: int, rate: float) -> None:
        self.preferences: Floats = np.zeros(actions)
        self._rate = rate

    def probabilities(self) -> Floats:
        """Of each action; they add up to 1."""
        exponents = np.exp(self.preferences - self.preferences.max())
        found: Floats = exponents / exponents.sum()
        return found

    def choose(self, number: int, chance: np.random.Generator) -> list[int]:
        """So many actions, drawn by their probabilities."""
        return [int(one) for one in chance.choice(len(self.preferences), size=number, p=self.probabilities())]

    def learn(self, chosen: Sequence[int], rewards: Sequence[float | None]) -> None:
        """One step on one group. A reward of None: the rollout is dropped."""
        found = advantages(rewards)
        ascent = np.zeros_like(self.preferences)
        for action, advantage in zip(chosen, found, strict=True):
            ascent += advantage * (np.eye(len(ascent))[action] - self.probabilities())
        known = sum(one is not None for one in rewards)
        self.preferences += self._rate * ascent / max(1, known)


def advantages(rewards: Sequence[float | None]) -> Floats:
    """Each reward's distance from the group's mean, in its spreads; 0 for a dropped one, which is in
    neither."""
    found = np.zeros(len(rewards))
    known = [place for place, one in enumerate(rewards) if one is not None]
    values = np.array([rewards[place] for place in known], dtype=float)
    if len(known) > 1 and values.std() > 0:
        found[known] = (values - values.mean()) / values.std()
    return found
