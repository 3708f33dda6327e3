"""The demo's task and agents, as `agents.yaml` has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from invigilator.guard.evaluation.suite import Step
from invigilator.profiles.library import load_text
from invigilator.profiles.policy import Policy

FILE = Path(__file__).with_name("agents.yaml")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AgentPlan(_Part):
    """One agent: what it is called, what it does in a few words, its tool calls."""

    name: str
    story: str
    steps: list[Step]


class Plan(_Part):
    """`repository`, `setup` and `verify` are bash texts: on the host, and in those phases of each sandbox."""

    policy: dict[str, Any]
    repository: str
    setup: str
    verify: str
    agents: list[AgentPlan]

    def parsed_policy(self) -> Policy:
        """The demo's policy."""
        return load_text(yaml.safe_dump(self.policy, sort_keys=False), FILE.name).policy


def load() -> Plan:
    """Read the plan."""
    return Plan.model_validate(yaml.safe_load(FILE.read_text()))
