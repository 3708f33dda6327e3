"""Harbor's own job and trial types, and the folder that a trial leaves."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

from common import IDS, TASK, judge, tell
from harbor.models.job.plugin import JobPlugin
from harbor.models.verifier.result import VerifierResult

from invigilator.guard.trainers.harbor import FILE, InvigilatorPlugin


class Job:
    """In the place of harbor.job.Job, which needs an engine: it keeps the callback that is registered."""

    def on_trial_ended(self, callback: object) -> Job:
        """As Job.on_trial_ended."""
        self.callback = callback
        return self


async def ended(folder: Path, rollout: str) -> dict[str, object]:
    """What lies in a trial's folder after its end."""
    trial = folder / rollout
    (trial / "verifier").mkdir(parents=True)
    reward = trial / "verifier" / "reward.json"
    reward.write_text(json.dumps({"reward": TASK[rollout]}))
    before = (reward.read_bytes(), reward.stat().st_mtime_ns)
    job, plugin = Job(), InvigilatorPlugin(judge())
    assert isinstance(plugin, JobPlugin)
    await plugin.on_job_start(job)
    result = SimpleNamespace(verifier_result=VerifierResult(rewards={"reward": TASK[rollout]}))
    event = SimpleNamespace(trial_name=rollout, result=result, config=SimpleNamespace(trials_dir=folder))
    await job.callback(event)  # type: ignore[operator]
    assert (reward.read_bytes(), reward.stat().st_mtime_ns) == before
    found: dict[str, object] = json.loads((trial / FILE).read_text())
    return found


with tempfile.TemporaryDirectory() as place:
    all_found = {one: asyncio.run(ended(Path(place), one)) for one in IDS}
    tell({one: told["reward"] for one, told in all_found.items()}, cheat=all_found["cheat"])  # type: ignore[misc]
