"""Inspect: an evaluation with the scorer around a task's own, and edits of a log without it."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from common import IDS, TASK, judge, tell
from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalLog, read_eval_log, write_eval_log
from inspect_ai.scorer import Score, Target, mean, scorer
from inspect_ai.solver import Generate, TaskState, solver

from invigilator.guard.trainers.inspect_ai import edit_log, guarded


@scorer(metrics=[mean()])
def solved() -> Any:
    """The task's score."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=TASK[state.metadata["rollout_id"]], metadata={"mine": 1})

    return score


@solver
def nothing() -> Any:
    """No model is asked."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        return state

    return solve


def run(folder: str, chosen: Any) -> EvalLog:
    """The log of an evaluation."""
    samples = [Sample(input="x", id=one, metadata={"rollout_id": one}) for one in IDS]
    task = Task(dataset=MemoryDataset(samples), solver=nothing(), scorer=chosen)
    log = eval(task, model="mockllm/model", log_dir=folder, display="none")[0]
    assert log.status == "success", log.error
    return log


def values(log: EvalLog, name: str) -> dict[str, float]:
    """Sample → its score."""
    return {str(one.id): float((one.scores or {})[name].value) for one in log.samples or []}  # type: ignore[arg-type]


def average(log: EvalLog) -> float:
    """The metric that Inspect made of the scores."""
    assert log.results is not None
    return next(
        metric.value for one in log.results.scores for metric in one.metrics.values() if metric.name == "mean"
    )


def main() -> None:
    """`scorer`, or `edit`: a log that is read again."""
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1] == "scorer":
            log = run(folder, guarded(solved(), judge()))
            tell(values(log, "invigilator"), mean=round(average(log), 6))
            return
        log = run(folder, solved())
        place = log.location
        edited = edit_log(log, "solved", judge())
        write_eval_log(log, place)
        again = read_eval_log(place)
        cheat = next(one for one in again.samples or [] if one.id == "cheat")
        history = (cheat.scores or {})["solved"].history
        made = history[-1].provenance
        tell(
            values(again, "solved"), mean=round(average(again), 6), edited=edited, before=history[0].value,
            author=made.author if made else None, why=made.reason if made else None,
        )  # fmt: skip


main()
