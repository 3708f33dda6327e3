"""verifiers (0.4, v1), and prime-rl, which trains on its traces: a reward of a task.

    class MyTask(vf.Task[MyData]):
        penalty = penalty(Judge())

A trace's reward is the sum of its rewards, to which the penalty is added as one of them. No None in a sum
leaves anything out, so a dropped rollout raises while it is scored: verifiers records that as the trace's
error, and all its rewards stay None, which is verifiers' word for unscored. `trace.reward` of such a trace is
an empty sum, 0: whoever takes rewards from traces takes `reward_of(trace)`, or looks at `has_error`. What is
late, past verifiers' deadline for scoring, leaves rewards None without an error: only `reward_of` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from invigilator.guard.trainers.core import CannotMaskError, Judge, rollout_id_in

KEY = "rollout_id"
NAME = "invigilator_penalty"


class DroppedRolloutError(CannotMaskError):
    """The rollout is to be dropped: its trace holds this as its error, and no reward."""


def penalty(judge: Judge, *, key: str = KEY, priority: int = -100) -> Callable[..., Any]:
    """A `@vf.reward` method. The rollout's id is `trace.info[key]`, or else the task's own `key`.

    What each step was charged becomes a metric, `invigilator_penalty/<step>`.
    """
    import verifiers.v1 as vf

    async def invigilator_penalty(self: Any, task: Any, trace: Any) -> Mapping[str, float]:
        rollout = rollout_in(task, trace, key)
        [one] = await judge.adjust_async([0.0], [rollout])
        if one.reward is None:
            raise DroppedRolloutError(f"rollout {rollout!r} is dropped: {one.why}")
        for step in one.penalty.by_step:
            [share] = judge.shares(one.penalty, [step])
            trace.record_metric(f"{NAME}/{step or 'no step'}", share)
        return {NAME: one.reward}

    marked: Callable[..., Any] = vf.reward(invigilator_penalty, priority=priority)
    return marked


def reward_of(trace: Any) -> float | None:
    """A trace's reward; None where it has an error or a reward that was not scored."""
    if trace.has_error or any(one is None for one in trace.rewards.values()):
        return None
    return float(trace.reward)


def rollout_in(task: Any, trace: Any, key: str) -> str:
    """The rollout's id of a trace or of its task."""
    info = dict(trace.info)
    found = info.get(key) or getattr(task, key, None)
    return rollout_id_in({**info, key: found}, key, where="neither trace.info nor the task")
