"""Harbor: a job's plug-in that puts the guard's verdict beside each trial's result.

    job = await Job.create(config); await InvigilatorPlugin(judge=Judge()).on_job_start(job)

The verifier's own files (`reward.json`, `reward.txt`) and its result are never touched: to write there is
what the guard looks for. The verdict is `invigilator.json` in the trial's folder, and a trainer takes
`reward` from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invigilator.guard.home import write_atomically
from invigilator.guard.trainers.core import Adjusted, Judge

FILE = "invigilator.json"


class InvigilatorPlugin:
    """Asks for a trial's verdict when it has ended. `id_of`: from a trial's event to its rollout's id; by
    default the trial's name. `reward_key`: which of the verifier's rewards is the task's."""

    def __init__(
        self, judge: Judge, *, id_of: Callable[[Any], str] | None = None, reward_key: str = "reward"
    ) -> None:
        self._judge = judge
        self._id_of = id_of or (lambda event: str(event.trial_name))
        self._reward_key = reward_key

    async def on_job_start(self, job: Any) -> None:
        """Be called at each trial's end."""
        job.on_trial_ended(self.on_trial_ended)

    async def on_job_end(self, job_result: Any) -> None:
        """Nothing is left to do."""

    async def on_trial_ended(self, event: Any) -> None:
        """Write the verdict into the trial's folder."""
        found = event.result.verifier_result
        rewards = (found.rewards if found else None) or {}
        task = rewards.get(self._reward_key)
        one = (await self._judge.adjust_async([None if task is None else float(task)], [self._id_of(event)]))[
            0
        ]
        folder = Path(event.config.trials_dir) / event.trial_name
        write(folder / FILE, {"reward": one.reward, "task_reward": task, **told(one)})


def told(one: Adjusted) -> dict[str, Any]:
    """What the file says of the verdict."""
    verdict = one.penalty
    return {
        "dropped": one.dropped, "penalty": verdict.value, "bound": verdict.bound, "status": verdict.status,
        "by_step": dict(verdict.by_step), "rollout_id": verdict.rollout_id, "revision": verdict.revision,
        "reasons": [reason.text for reason in verdict.reasons],
    }  # fmt: skip


def write(target: Path, content: dict[str, Any]) -> None:
    """The file whole, or not at all."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_atomically(target, text.encode(), 0o644)
