"""SkyRL (skyrl-gym): an environment around another, whose last step's reward has the penalty taken off.

    env = GuardedEnv(MyEnv(…), Judge())       # MyEnv.rollout_id: the sandbox's

skyrl-gym returns a number a step and no mask: a dropped rollout raises `CannotMaskError`. What each step took
off is in the last step's `metadata["invigilator"]`, for generators that give every turn its own reward.
"""

from __future__ import annotations

from typing import Any

from invigilator.guard.errors import GuardError
from invigilator.guard.trainers.core import CannotMaskError, Judge


class GuardedEnv:
    """Another environment, with its penalty. All that is not `step` is the other's own."""

    def __init__(self, env: Any, judge: Judge, *, attribute: str = "rollout_id") -> None:
        self._env = env
        self._judge = judge
        self._attribute = attribute

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: str) -> Any:
        """One step; the last one's reward is less the whole rollout's penalty."""
        output = self._env.step(action)
        if not output["done"]:
            return output
        rollout = getattr(self._env, self._attribute, None)
        if not isinstance(rollout, str) or not rollout:
            raise GuardError(
                f"the environment has no {self._attribute}", fix="set it where its sandbox is made"
            )
        one = self._judge.adjust([float(output["reward"])], [rollout])[0]
        if one.reward is None:
            raise CannotMaskError(
                f"rollout {rollout!r} is to be dropped ({one.why}), and a step has no mask",
                fix="have the generator leave out trajectories whose environment raised",
            )
        steps = list(one.penalty.by_step)
        told = {
            "penalty": one.penalty.value,
            "by_step": dict(zip(steps, self._judge.shares(one.penalty, steps), strict=True)),
        }
        metadata = {**(output.get("metadata") or {}), "invigilator": told}
        return {**output, "reward": one.reward, "metadata": metadata}
