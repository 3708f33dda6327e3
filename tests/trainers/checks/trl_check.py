"""The real GRPOTrainer, with a tiny model: one batch, its advantages, and the gradient of dropped rows."""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from common import IDS, TASK, judge, tell
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from invigilator.guard.trainers.trl import check, guarded

WORDS = ["<pad>", "<s>", "</s>", *"abcdefghij"]


def solved(completions: list[str], rollout_id: list[str], **_: Any) -> list[float]:
    """The task's reward."""
    return [TASK[one] for one in rollout_id]


def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """What a rollout function returns: tokens, and the sandbox's id."""
    count = len(prompts)
    return {
        "prompt_ids": [[1, 3, 4]] * count,
        "completion_ids": [[5 + number, 2] for number in range(count)],
        "logprobs": [[-1.0, -1.0]] * count,
        "rollout_id": IDS,
    }


class Watched(GRPOTrainer):
    """Keeps what the trainer made of a batch."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.made = super()._generate_and_score_completions(inputs)
        return self.made


def step(folder: str, guarding: bool, scale: str) -> tuple[dict[str, float], list[float], float]:
    """One step of a fresh trainer: rewards, advantages, and the dropped rows' gradient."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **shape))
    config = GRPOConfig(
        output_dir=folder, per_device_train_batch_size=len(IDS), num_generations=len(IDS), max_steps=1,
        max_completion_length=4, use_cpu=True, report_to=[], beta=0.0, save_strategy="no",
        disable_tqdm=True, learning_rate=0.0, scale_rewards=scale, loss_type="grpo",
    )  # fmt: skip
    function = guarded([solved], judge()) if guarding else solved
    trainer = Watched(
        model, function, args=config, train_dataset=Dataset.from_dict({"prompt": ["a b"]}),
        processing_class=fast, rollout_func=rollouts,
    )  # fmt: skip
    if guarding:
        check(trainer)
    trainer.train()
    rewards = dict(zip(IDS, trainer._logs["rewards"][function.__name__], strict=True))
    return rewards, trainer.made["advantages"].tolist(), gradient(trainer, trainer.made, rewards)


def main() -> None:
    """Plain, with the task's function alone; and guarded, with each of TRL's ways to scale."""
    with tempfile.TemporaryDirectory() as folder:
        made = {scale: step(folder, True, scale) for scale in ("group", "batch", "none")}
        plain = step(folder, False, "group")
    advantages = {scale: one[1] for scale, one in made.items()} | {"plain": plain[1]}
    tell(made["group"][0], advantages=advantages, gradient=max(one[2] for one in made.values()))


def gradient(trainer: Any, made: dict[str, Any], rewards: dict[str, float]) -> float:
    """The size of the gradient that the rows without a reward make alone."""
    rows = [number for number, one in enumerate(rewards.values()) if one != one]
    if not rows:
        return 0.0
    part = {
        name: value[rows] if isinstance(value, torch.Tensor) and value.shape[:1] == (len(rewards),) else value
        for name, value in made.items()
    }
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, part).backward()
    return float(sum(one.grad.abs().sum() for one in trainer.model.parameters() if one.grad is not None))


main()
