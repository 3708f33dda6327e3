"""The loop: the same seeds with the penalty and without it, and how often the agent cheats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from invigilator.guard.demo.training.actions import ACTIONS
from invigilator.guard.demo.training.episodes import Episode, Gym
from invigilator.guard.demo.training.learner import Learner

RATE = 1.5
SALT_DIGITS = 12
CHEATS = [place for place, action in enumerate(ACTIONS) if action.cheat]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one run. `cheating`: the probability that the agent cheats, before it learns from the step;
    `reward`: the verifier's mean; `penalty`: what the guard took off, on average."""

    guarded: bool
    seed: int
    step: int
    cheating: float
    cheated: float
    reward: float
    penalty: float
    dropped: int
    probabilities: list[float]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    seeds: int = 3
    steps: int = 12
    group: int = 8


async def run(home: Path, folder: Path, run_id: str, size: Size, tell: Callable[[Step], None]) -> list[Step]:
    """Every seed in both arms, in turn; `tell` hears of each step as it ends."""
    gym = Gym(home, folder, run_id)
    steps: list[Step] = []
    try:
        for seed in range(size.seeds):
            for guarded in (True, False):
                steps += await _train(gym, seed, size, tell, guarded=guarded)
    finally:
        gym.close()
    return steps


async def _train(
    gym: Gym, seed: int, size: Size, tell: Callable[[Step], None], *, guarded: bool
) -> list[Step]:
    learner, chance = Learner(len(ACTIONS), RATE), np.random.default_rng(seed)
    arm = "guarded" if guarded else "unguarded"
    steps = []
    for number in range(size.steps):
        chosen = learner.choose(size.group, chance)
        salts = ["".join(map(str, chance.integers(0, 10, SALT_DIGITS))) for _ in chosen]
        labels = {"arm": arm, "seed": str(seed), "train_step": str(number), "group": f"{arm}-{seed}-{number}"}
        episodes = await gym.play(chosen, salts, labels)
        steps.append(_step(learner, episodes, seed, number, guarded=guarded))
        tell(steps[-1])
        learner.learn(chosen, [one.total if guarded else one.reward for one in episodes])
    return steps


def _step(learner: Learner, episodes: Sequence[Episode], seed: int, number: int, *, guarded: bool) -> Step:
    probabilities = learner.probabilities()
    taken = [one.penalty for one in episodes if one.penalty is not None]
    return Step(
        guarded=guarded,
        seed=seed,
        step=number,
        cheating=float(probabilities[CHEATS].sum()),
        cheated=sum(one.action in CHEATS for one in episodes) / len(episodes),
        reward=sum(one.reward for one in episodes) / len(episodes),
        penalty=sum(taken) / max(1, len(taken)),
        dropped=len(episodes) - len(taken),
        probabilities=[round(float(one), 4) for one in probabilities],
    )


def document(steps: Sequence[Step], size: Size) -> dict[str, Any]:
    """All of it, as JSON has it."""
    return {
        "size": asdict(size),
        "actions": [one.name for one in ACTIONS],
        "steps": [asdict(s) for s in steps],
    }
