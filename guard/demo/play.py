"""One agent's rollout: setup, its tool calls, verify, verdict."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from invigilator.guard.demo.plan import AgentPlan, Plan
from invigilator.guard.sdk import Sandbox
from invigilator.incidents.records import Report

VERIFY_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Played:
    """What became of an agent: the verifier's reward, the guard's report, how long it took."""

    agent: AgentPlan
    reward: float
    report: Report
    seconds: float


async def play(plan: Plan, agent: AgentPlan, home: Path, folder: Path, run_id: str) -> Played:
    """Run `agent` in a sandbox of the home's agent; `folder` is scratch on the host."""
    began = time.monotonic()
    box = Sandbox.create(
        policy=plan.parsed_policy(),
        workspace=make_repository(plan, folder / agent.name),
        run_id=run_id,
        rollout_id=f"{run_id}-{agent.name}",
        labels={"demo": agent.name},
        copy_back=False,
        home=home,
    )
    async with box:
        await box.phase("setup")
        await box.exec(["bash", "-c", plan.setup], step_id="setup")
        await box.phase("agent")
        for step in agent.steps:
            await box.exec(step.command(), step_id=step.id, timeout_s=step.timeout_s)
        await box.phase("verify")
        verified = await box.exec(["bash", "-c", plan.verify], step_id="verify", timeout_s=VERIFY_TIMEOUT_S)
        report = await box.verdict()
    return Played(agent, float(verified.exit_code == 0), report, time.monotonic() - began)


def make_repository(plan: Plan, folder: Path) -> Path:
    """The task's repository, made anew in `folder`."""
    folder.mkdir(parents=True)
    person = {"NAME": "Author", "EMAIL": "author@example.org", "DATE": "2026-01-01T00:00:00Z"}
    identity = {
        f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in person.items()
    }
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        **identity,
    }
    subprocess.run(["bash", "-euc", plan.repository], cwd=folder, env=environment, check=True, timeout=30)
    return folder
