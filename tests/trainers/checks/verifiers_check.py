"""A verifiers task, scored by its own `Task.score`, and what of it a trace keeps."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import verifiers.v1 as vf
from common import IDS, TASK, judge, tell

from invigilator.guard.trainers.verifiers import penalty


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


async def scored(rollout: str) -> tuple[float | None, bool, float]:
    """(the trace's reward, None where scoring raised; whether it has an error; what its sum would say)."""
    data = Data(idx=0, prompt="do it")
    task = MyTask(data)
    trace = vf.Trace(task=data)
    trace.info["rollout_id"] = rollout
    try:
        await task.score(trace, None)
    except vf.TaskError as error:
        trace.capture_error(error)
        return None, trace.has_error, trace.reward
    return trace.reward, trace.has_error, trace.reward


def main() -> None:
    """All rollouts."""
    found = {one: asyncio.run(scored(one)) for one in IDS}
    tell({one: told[0] for one, told in found.items()}, errors={one: told[1] for one, told in found.items()})


assert inspect.iscoroutinefunction(MyTask.penalty)
main()
