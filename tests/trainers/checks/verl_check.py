"""verl's own reward manager, and its own way from rewards to advantages and to the policy's loss."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import torch
from common import IDS, TASK, judge, tell
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.ray_trainer import compute_advantage

from invigilator.guard.trainers.core import CannotMaskError
from invigilator.guard.trainers.verl import guarded, install

LENGTH = 4


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, **_: Any) -> float:
    """The task's reward."""
    return TASK[extra_info["rollout_id"]]


class Words:
    """The tokenizer that a reward manager asks."""

    def decode(self, ids: Any, **_: Any) -> str:
        """Of no interest to the score."""
        return "text"


def row(rollout: str) -> DataProto:
    """One finished rollout, as an agent loop hands it on."""
    ones = torch.ones(1, LENGTH, dtype=torch.long)
    batch = TensorDict({"responses": ones, "attention_mask": ones.repeat(1, 2)}, batch_size=1)
    told = {
        "data_source": np.array(["mine"], dtype=object),
        "reward_model": np.array([{"ground_truth": ""}], dtype=object),
        "extra_info": np.array([{"rollout_id": rollout}], dtype=object),
    }
    return DataProto(batch=batch, non_tensor_batch=told)


async def scores(masks: bool) -> dict[str, float | None]:
    """What the reward manager gives each rollout; None where it raised."""
    manager = NaiveRewardManager(
        OmegaConf.create({"reward": {}}), Words(), guarded(score, judge(), masks=masks)
    )
    found: dict[str, float | None] = {}
    for one in IDS:
        try:
            found[one] = (await manager.run_single(row(one)))["reward_score"]
        except CannotMaskError:
            found[one] = None
    return found


def main() -> None:
    """`raise`: without a way to mask. `mask`: with the estimator, to advantages and loss."""
    manager_loop = asyncio.new_event_loop()
    asyncio.set_event_loop(manager_loop)
    found = manager_loop.run_until_complete(scores(sys.argv[1] == "mask"))
    if sys.argv[1] != "mask":
        tell(found)
        return
    name = install()
    assert install() == name
    rewards = torch.zeros(len(IDS), LENGTH)
    rewards[:, -1] = torch.tensor([float(one) for one in found.values() if one is not None])
    data = DataProto(
        batch=TensorDict(
            {"token_level_rewards": rewards, "response_mask": torch.ones(len(IDS), LENGTH)},
            batch_size=len(IDS),
        ),
        non_tensor_batch={"uid": np.array(["one group"] * len(IDS), dtype=object)},
    )
    made = compute_advantage(data, name, config=OmegaConf.create({"norm_adv_by_std_in_grpo": True}))
    logits = torch.zeros(len(IDS), LENGTH, requires_grad=True)
    loss = agg_loss(-made.batch["advantages"] * logits, made.batch["response_mask"], "seq-mean-token-mean")
    kl = agg_loss(logits**2 + logits, made.batch["response_mask"], "seq-mean-token-mean")
    (loss + kl).backward()
    assert logits.grad is not None
    gradient = logits.grad.abs().sum(dim=-1)
    dropped = [number for number, one in enumerate(found.values()) if one is None or one != one]
    advantages = made.batch["advantages"][:, 0]
    tell(
        found,
        advantages=advantages.tolist(),
        gradient=float(gradient[dropped].sum()),
        others=float(gradient.sum()),
    )


main()
