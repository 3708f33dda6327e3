"""OpenRLHF: a `reward_func`, for `--remote_rm_url FILE.py`.

    from invigilator.guard.trainers.openrlhf import guarded reward_func = guarded(my_reward,
    Judge(), id_of=lambda label: json.loads(label)["id"])

OpenRLHF 0.11 makes a group's baseline of all its samples, and has no mask for one of them: a dropped rollout
raises `CannotMaskError`, and the step fails rather than be trained on a number that nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from invigilator.guard.trainers.core import CannotMaskError, Judge


def guarded(
    reward_func: Callable[..., dict[str, Any]], judge: Judge, *, id_of: Callable[[Any], str]
) -> Callable[..., dict[str, Any]]:
    """`reward_func` with penalties taken off its rewards; `scores` (what dynamic filtering reads) stay the
    task's own. `id_of`: from a label to its rollout's id."""

    def guarded_reward(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
    ) -> dict[str, Any]:
        found = reward_func(queries, prompts, labels)
        rewards = found["rewards"]
        judged = judge.adjust([float(one) for one in rewards], [id_of(label) for label in labels])
        for one in judged:
            if one.dropped:
                raise CannotMaskError(
                    f"rollout {one.penalty.rollout_id!r} is to be dropped ({one.why}), and OpenRLHF's groups "
                    "take in every sample",
                    fix="take it out of the batch before the reward is asked for",
                )
        penalties = [one.penalty.value for one in judged]
        logs = {**found.get("extra_logs", {}), "invigilator_penalty": _like(rewards, penalties)}
        return {**found, "rewards": _like(rewards, [one.reward for one in judged]), "extra_logs": logs}

    return guarded_reward


def _like(rewards: Any, values: Sequence[float | None]) -> Any:
    return rewards.new_tensor(values) if hasattr(rewards, "new_tensor") else list(values)
