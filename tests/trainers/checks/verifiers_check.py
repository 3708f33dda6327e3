"""A verifiers task, scored by its own `Task.score`, and what of it a trace keeps."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import verifiers.v1 as vf
from common import IDS, TASK, judge, tell
from verifiers.v1.trace import AgentInfo, TraceTask

from invigilator.guard.trainers.verifiers import penalty, reward_of


class Data(vf.TaskData):
    """What a task is made of."""

    rollout_id: str = ""


class MyTask(vf.Task[Data]):
    """A task with a reward of its own and the penalty."""

    penalty = penalty(judge())

    @vf.reward
    async def solved(self, trace: Any) -> float:
        """The task's reward."""
        return TASK[trace.info["rollout_id"]]


async def scored(rollout: str) -> vf.Trace:
    """A finished rollout's trace, scored as verifiers' own rollout does: an error in it is recorded."""
    data = Data(idx=0, prompt="do it")
    task = MyTask(data)
    trace = vf.Trace(
        task=TraceTask(type="MyTask", data=data), agent=AgentInfo(config=vf.AgentConfig()), ok=True
    )
    trace.info["rollout_id"] = rollout
    try:
        await task.score(trace, None)
    except vf.RolloutError as error:
        trace.record_error(error)
    return trace


async def main() -> None:
    """All rollouts, at once."""
    found = dict(zip(IDS, await asyncio.gather(*map(scored, IDS)), strict=True))
    cheat = found["cheat"]
    tell(
        {one: reward_of(trace) for one, trace in found.items()},
        errors={one: trace.has_error for one, trace in found.items()},
        unscored={one: list(trace.rewards.values()) for one, trace in found.items() if trace.has_error},
        told=[error.message for error in found["flood"].errors],
        metrics=cheat.metrics,
    )


assert inspect.iscoroutinefunction(MyTask.penalty)
asyncio.run(main())
