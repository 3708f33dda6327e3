"""TRL's GRPOTrainer and kin (1.16): one reward function around the task's.

    trainer = GRPOTrainer(model, reward_funcs=guarded([task_reward], Judge()), …)
    check(trainer)

TRL sums its reward functions and ignores a None beside another reward, so a penalty as one more function
would neither drop a rollout nor be safe beside a task that did not score. A row whose only function says None
is unscorable to TRL: NaN in the group's mean and spread, advantage 0.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from invigilator.guard.answers import RolloutPenalty
from invigilator.guard.trainers.core import CannotMaskError, Judge, rollout_id_in

Rewards = Sequence[float | None]
RewardFunction = Callable[..., Rewards | Awaitable[Rewards]]
GUARDED = "__invigilator__"


class Arguments(Protocol):
    """What `check` reads of a trainer's arguments."""

    beta: float
    multi_objective_aggregation: str


class Trainer(Protocol):
    """What `check` reads of a trainer."""

    args: Arguments
    reward_funcs: Sequence[object]


def guarded(
    reward_funcs: Sequence[RewardFunction],
    judge: Judge,
    *,
    weights: Sequence[float] | None = None,
    column: str = "rollout_id",
) -> RewardFunction:
    """One reward function: the sum of the task's by their `weights` (default 1 each), and the penalty.

    A None of the task's functions counts as in TRL: not applicable, and left out of the sum; all None, or a
    rollout to be dropped: None. `column`: of the data set, or what a rollout function returned, with the
    rollouts' ids. Logs `guard/penalty` (mean of those known) and `guard/masked` (share).
    """
    if not reward_funcs:
        raise ValueError("guarded needs the task's reward functions")
    shares = [1.0] * len(reward_funcs) if weights is None else list(weights)
    if len(shares) != len(reward_funcs):
        raise ValueError(f"{len(shares)} weights for {len(reward_funcs)} reward functions")
    for one in reward_funcs:
        if not callable(one) or hasattr(one, "forward"):
            raise CannotMaskError(
                f"{one!r} is a reward model", fix="wrap it in a function that returns a list"
            )

    def settled(task: Sequence[Rewards], found: Sequence[RolloutPenalty], columns: Any) -> Rewards:
        rewards = [summed(row, shares) for row in zip(*task, strict=True)]
        report(found, judge, columns.get("log_metric"))
        return [judge.combine(reward, one) for reward, one in zip(rewards, found, strict=True)]

    def reward(*, prompts: Any, completions: Any, **columns: Any) -> Rewards:
        ids = ids_in(columns, column, len(completions))
        task: list[Any] = [one(prompts=prompts, completions=completions, **columns) for one in reward_funcs]
        return settled(task, judge.ask(ids), columns)

    async def reward_async(*, prompts: Any, completions: Any, **columns: Any) -> Rewards:
        ids = ids_in(columns, column, len(completions))
        made = [one(prompts=prompts, completions=completions, **columns) for one in reward_funcs]
        task = [await one if inspect.isawaitable(one) else one for one in made]
        return settled(task, await judge.ask_async(ids), columns)

    whole = reward_async if any(map(is_async, reward_funcs)) else reward
    whole.__name__ = "_and_".join(getattr(one, "__name__", "reward") for one in reward_funcs) + "_guarded"
    setattr(whole, GUARDED, judge)
    return whole


def check(trainer: Trainer) -> None:
    """CannotMaskError where the trainer, as it is configured, would train on dropped rollouts.

    Looks at: reward functions beside the guarded one (an environment's `get_reward` is one too), and the
    distance to the reference model (`beta`), whose gradient a dropped rollout would still have.
    """
    beside = [one for one in trainer.reward_funcs if not hasattr(one, GUARDED)]
    if beside or len(trainer.reward_funcs) != 1:
        names = ", ".join(getattr(one, "__name__", repr(one)) for one in beside) or "a second guarded one"
        fix = "give all to one guarded(); an environment's get_reward as a function of `environments`"
        raise CannotMaskError(f"TRL scores a dropped rollout by what is beside the guard: {names}", fix=fix)
    if trainer.args.beta:
        problem = f"with beta={trainer.args.beta} a dropped rollout still pulls towards the reference model"
        raise CannotMaskError(problem, fix="set beta=0")


def summed(row: Sequence[float | None], shares: Sequence[float]) -> float | None:
    """The weighted sum of a row's rewards; None where none applies."""
    known = [share * one for one, share in zip(row, shares, strict=True) if one is not None and one == one]
    return sum(known) if known else None


def ids_in(columns: dict[str, Any], column: str, rows: int) -> list[str]:
    """The batch's rollout ids."""
    values = columns.get(column)
    if values is None or len(values) != rows:
        rollout_id_in(dict.fromkeys(columns), column, where="TRL's columns")
    return [rollout_id_in({column: one}, column, where=f"row {row}") for row, one in enumerate(values or ())]


def report(found: Sequence[RolloutPenalty], judge: Judge, log: Callable[[str, float], None] | None) -> None:
    """Tell TRL's log what the penalties were."""
    if log is None or not found:
        return
    known = [one.value for one in found if one.value is not None]
    log("guard/penalty", sum(known) / len(known) if known else math.nan)
    log("guard/masked", sum(map(judge.masks, found)) / len(found))


def is_async(function: object) -> bool:
    """Whether calling it gives something to await."""
    return asyncio.iscoroutinefunction(function) or asyncio.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )
