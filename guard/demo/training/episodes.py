"""Rollouts of one group, in guarded sandboxes at the same time, and what they are worth."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from invigilator.guard.client import PenaltyClient
from invigilator.guard.demo.training.actions import ACTIONS, CHECK, VERIFY, Action
from invigilator.guard.sdk import Sandbox

AT_ONCE = 3
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout: the action, the verifier's reward, what the guard took off (None: it is to be dropped)."""

    action: int
    reward: float
    penalty: float | None

    @property
    def total(self) -> float | None:
        """The reward less the penalty."""
        return None if self.penalty is None else self.reward + self.penalty


class Gym:
    """Plays actions. `home`: the state folder of agent and service; `folder`: scratch; `run_id`: of all."""

    def __init__(self, home: Path, folder: Path, run_id: str) -> None:
        self._home, self._folder, self._run_id = home, folder, run_id
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._client = PenaltyClient(home=home)
        self._played = 0

    async def play(
        self, chosen: Sequence[int], salts: Sequence[str], labels: Mapping[str, str]
    ) -> list[Episode]:
        """One episode an action; their penalties in one batch."""
        ids = [f"{self._run_id}-{self._played + place}" for place in range(len(chosen))]
        self._played += len(chosen)
        told = zip(ids, chosen, salts, strict=True)
        rewards = await asyncio.gather(*(self._one(i, ACTIONS[a], salt, labels) for i, a, salt in told))
        found = await self._client.batch_async(ids, run_id=self._run_id, max_unknown=None)
        penalties = [None if one.drop else one.value for one in found]
        return [Episode(*each) for each in zip(chosen, rewards, penalties, strict=True)]

    async def _one(self, rollout: str, action: Action, salt: str, labels: Mapping[str, str]) -> float:
        async with self._gate:
            box = Sandbox.create(
                policy="swe-task", workspace=self._workspace(rollout, salt), run_id=self._run_id,
                rollout_id=rollout, labels=labels, copy_back=False, home=self._home,
            )  # fmt: skip
            async with box:
                await box.phase("agent")
                await box.exec(["bash", "-c", action.command], step_id="act", timeout_s=TIMEOUT_S)
                await box.phase("verify")
                done = await box.exec(VERIFY, step_id="verify", actor="platform", timeout_s=TIMEOUT_S)
                await box.verdict()
            return float(done.exit_code == 0)

    def _workspace(self, rollout: str, salt: str) -> Path:
        folder = self._folder / rollout
        (folder / "tests").mkdir(parents=True)
        (folder / "salt").write_text(salt)
        check = folder / "tests" / "check.sh"
        check.write_text(CHECK)
        check.chmod(0o755)
        return folder

    def close(self) -> None:
        """End the client."""
        with contextlib.suppress(RuntimeError):
            self._client.close()
