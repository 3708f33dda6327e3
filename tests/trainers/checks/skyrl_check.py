"""skyrl-gym's own environment class, wrapped."""

from __future__ import annotations

from common import IDS, TASK, judge, tell
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from invigilator.guard.trainers.core import CannotMaskError
from invigilator.guard.trainers.skyrl import GuardedEnv


class Mine(BaseTextEnv):
    """Two turns."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__()
        self.rollout_id = rollout_id
        self.max_turns = 2

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """One turn; the second is the last, and rewarded."""
        self.turns += 1
        done = self.turns >= self.max_turns
        reward = TASK[self.rollout_id] if done else 0.0
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=done, metadata={"mine": 1})


def last(rollout: str) -> BaseTextEnvStepOutput | None:
    """The last step's output; None where it raised."""
    env = GuardedEnv(Mine(rollout), judge())
    assert env.step("a")["reward"] == 0.0 and env.turns == 1
    try:
        return env.step("b")  # type: ignore[no-any-return]
    except CannotMaskError:
        return None


found = {one: last(one) for one in IDS}
cheat = found["cheat"]
assert cheat is not None
tell({name: one["reward"] if one else None for name, one in found.items()}, metadata=cheat["metadata"])
