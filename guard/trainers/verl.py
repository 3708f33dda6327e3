"""verl (0.9.1): `compute_score`, and advantage estimators that leave dropped rollouts out.

A module that can be imported, named by `reward.custom_reward_function.path=pkg://my_reward` and, for the
process that makes the advantages, by the environment variable `VERL_USE_EXTERNAL_MODULES=my_reward`:

    from invigilator.guard.trainers.core import Judge
    from invigilator.guard.trainers.verl import guarded, install

    install()                                   # algorithm.adv_estimator=invigilator_grpo
    compute_score = guarded(my_score, Judge(), masks=True)

verl's own estimators take every row into the group's mean and spread, and know no None. A dropped rollout's
score is NaN here, and the estimator `invigilator_<name>` is verl's own <name> over the rows that are known;
the others get advantage 0 and an empty response mask. `check(config)` refuses a run whose losses would read
them all the same. Without `masks=True` a dropped rollout raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from invigilator.guard.errors import GuardError
from invigilator.guard.trainers.core import CannotMaskError, Judge, rollout_id_in

PREFIX = "invigilator_"
GROUPED = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "reinforce_plus_plus_baseline")
"""Estimators of verl whose baseline is the mean over a group's rows, and which need nothing beside them."""
SWALLOWING = ("rate_limited", "prime")
"""Reward managers of verl that answer 0.0 for an exception or a late score."""
KEY = "rollout_id"


def guarded(
    compute_score: Callable[..., Any], judge: Judge, *, masks: bool = False, key: str = KEY
) -> Callable[..., Any]:
    """An async `compute_score` whose score is the task's with its penalty.

    The rollout's id is `extra_info[key]` (the data set's column `extra_info`, or `tool_extra_fields` of an
    agent loop). `masks`: the run's estimator is one of `install`, so that a dropped rollout's score may be
    NaN; without it a dropped one raises CannotMaskError. Beside `score`: `task_score`, `penalty`, `dropped`.
    """

    async def compute(
        data_source: Any,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        rollout = rollout_id_in(extra_info or {}, key, where="verl's extra_info")
        asked = {"data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth}
        found = compute_score(**asked, extra_info=extra_info, **more)
        found = await found if inspect.isawaitable(found) else found
        told = dict(found) if isinstance(found, Mapping) else {"score": found}
        task = told["score"]
        [one] = await judge.adjust_async([None if task is None else float(task)], [rollout])
        if one.reward is None and not masks:
            problem = (
                f"rollout {rollout!r} has no reward ({one.why}), and this run's estimator counts all rows"
            )
            fix = f"take an estimator of install(), such as {PREFIX}grpo, and masks=True"
            raise CannotMaskError(problem, fix=fix)
        return {
            **told,
            "score": number(one.reward),
            "task_score": number(task),
            "penalty": number(one.penalty.value),
            "dropped": float(one.dropped),
        }

    return compute


def number(value: float | None) -> float:
    """A number for verl, whose columns know no None."""
    return float("nan") if value is None else float(value)


def install(base: str = "grpo") -> str:
    """Register `invigilator_<base>` with verl, and return that name. `base`: one of `GROUPED`."""
    if base not in GROUPED:
        problem = f"verl's estimator {base} does not make its baseline of a group's rows alone"
        raise CannotMaskError(problem, fix=f"take one of {', '.join(GROUPED)}")
    from verl.trainer.ppo import core_algos

    name = PREFIX + base
    if name not in core_algos.ADV_ESTIMATOR_REGISTRY:
        core_algos.register_adv_est(name)(over_known_rows(core_algos.get_adv_estimator_fn(base)))
    return name


def over_known_rows(estimator: Callable[..., Any]) -> Callable[..., Any]:
    """An estimator of verl's over the rows whose reward is a number.

    Rows that are NaN get advantage 0; their parts of `token_level_rewards` and `response_mask` are set to 0
    where they stand, so that no loss and no mean of verl's reads them.
    """
    takes = inspect.signature(estimator).parameters

    def advantages(
        token_level_rewards: Any, response_mask: Any, index: Any = None, config: Any = None, **more: Any
    ) -> tuple[Any, Any]:
        if index is None:
            raise GuardError("the batch has no uid", fix="a group's rows are told by verl's uid")
        if "norm_adv_by_std_in_grpo" in takes and config is not None:
            more["norm_adv_by_std_in_grpo"] = bool(config.get("norm_adv_by_std_in_grpo", True))
        known = ~token_level_rewards.sum(dim=-1).isnan()
        made = [
            response_mask.new_zeros(token_level_rewards.shape, dtype=token_level_rewards.dtype) for _ in "ar"
        ]
        if known.any():
            parts = estimator(
                token_level_rewards=token_level_rewards[known],
                response_mask=response_mask[known],
                index=index[known.cpu().numpy()],
                config=config,
                **more,
            )
            for whole, part in zip(made, parts, strict=True):
                whole[known] = part
        response_mask[~known] = 0
        token_level_rewards[~known] = 0
        return made[0], made[1]

    return advantages


def check(config: Any) -> None:
    """CannotMaskError where a run with this configuration of verl's would train on dropped rollouts.

    Looks at the estimator, at reward managers that make 0.0 of an error, and, with the trainer v1 (verl's
    default), which takes no response mask back from an estimator, at terms of the loss beside the advantage:
    the distance to the reference model and the entropy.
    """
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    if not str(algorithm.adv_estimator).startswith(PREFIX):
        problem = f"algorithm.adv_estimator={algorithm.adv_estimator} takes every row into its baseline"
        raise CannotMaskError(problem, fix=f"install() and {PREFIX}grpo")
    manager = config.reward.reward_manager.name
    if manager in SWALLOWING:
        problem = f"the reward manager {manager} makes 0.0 of an error and of a late score"
        raise CannotMaskError(problem, fix="reward.reward_manager.name=naive")
    beside = [name for name in ("use_kl_loss", "entropy_coeff") if actor.get(name)]
    if config.trainer.get("use_v1", True) and beside:
        problem = f"with actor.{beside[0]} the trainer v1 trains on a dropped rollout beside its advantage"
        raise CannotMaskError(problem, fix=f"set {' and '.join(beside)} to nothing, or trainer.use_v1=False")
