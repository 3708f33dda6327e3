"""OpenRLHF's own executor, which loads a file's `reward_func` and asks it for each sample."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import torch
from common import IDS, tell
from openrlhf.utils.agent import SingleTurnAgentExecutor

HERE = str(Path(__file__).parent)
FILE = """
import json, sys
sys.path.insert(0, {here!r})
import torch
from common import TASK, judge
from invigilator.guard.trainers.openrlhf import guarded

def mine(queries, prompts, labels):
    rewards = torch.tensor([TASK[json.loads(label)["id"]] for label in labels])
    return {{"rewards": rewards, "scores": rewards, "extra_logs": {{}}}}

reward_func = guarded(mine, judge(), id_of=lambda label: json.loads(label)["id"])
"""


async def asked(executor: SingleTurnAgentExecutor, rollout: str) -> float | None:
    """What the executor takes from the function; None where that raised."""
    from invigilator.guard.trainers.core import CannotMaskError

    try:
        [found] = await executor._fetch_rewards_via_func(["q"], ["p"], [json.dumps({"id": rollout})])
    except CannotMaskError:
        return None
    assert isinstance(found["rewards"], torch.Tensor)
    return float(found["rewards"][0])


with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
    file.write(FILE.format(here=HERE))
    file.flush()
    made = SingleTurnAgentExecutor(file.name)
    tell({one: asyncio.run(asked(made, one)) for one in IDS})
