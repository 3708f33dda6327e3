"""One case in a real sandbox, through the SDK: build its workspace, run its steps, judge its incidents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from invigilator.guard.errors import GuardError
from invigilator.guard.evaluation import fetch, score
from invigilator.guard.evaluation.report import CaseResult, State
from invigilator.guard.evaluation.suite import NOT_COMPILED, Case, Expectation, Step, Suite
from invigilator.guard.link import AgentGoneError
from invigilator.guard.sdk import Sandbox
from invigilator.incidents.records import Report
from invigilator.profiles.library import load_text
from invigilator.profiles.policy import PhaseName, Policy

PHASES: Sequence[PhaseName] = ("setup", "agent", "verify")
LOG_CHARS = 1500
"""How much of a dead agent's log goes into the results."""
GRACE_S = 30.0
"""How much longer than its steps' own limits a case may take: sandbox, stage and verdict."""

_GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Author",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "Author",
    "GIT_COMMITTER_EMAIL": "author@example.org",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}


class BrokenCaseError(GuardError):
    """The case did not do what it says; its detector is not to blame."""


async def run_case(suite: Suite, case: Case, home: Path, folder: Path, cache: Path) -> CaseResult:
    """Run `case` with a sandbox of the agent at `home`; `folder` is scratch, `cache` keeps downloads."""
    began = time.monotonic()
    if lacking := [tool for tool in case.requires if shutil.which(tool, path="/usr/bin:/usr/sbin") is None]:
        return _result(case, "skipped", f"not on this machine: {', '.join(lacking)}")
    try:
        policy = load_text(yaml.safe_dump(case.policy), f"{case.name}.yaml").policy
        workspace = await asyncio.to_thread(build_workspace, suite, case, folder, cache)
        limit_s = GRACE_S + sum(step.timeout_s for step in case.steps)
        report = await asyncio.wait_for(_play(suite, case, policy, workspace, home), limit_s)
    except fetch.FetchError as error:
        return _result(case, "skipped", str(error))
    except TimeoutError:
        return _result(case, "broken", "did not end in time", seconds=time.monotonic() - began)
    except Exception as error:  # an evaluation goes on over whatever one case meets
        note = f"{type(error).__name__}: {error}"
        if isinstance(error, AgentGoneError):
            note += f"; its log ends: {_log_end(home / 'run' / 'agent.log')}"
        return _result(case, "broken", note, seconds=time.monotonic() - began)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return judge(case, policy, report, time.monotonic() - began)


def _log_end(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_text(errors="replace")[-LOG_CHARS:]
    return "(no log)"


def build_workspace(suite: Suite, case: Case, folder: Path, cache: Path) -> Path:
    """The case's workspace on the host, made anew."""
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", **_GIT}
    made = subprocess.run(
        ["bash", "-euc", suite.fixtures[case.fixture]],
        cwd=workspace,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if made.returncode:
        raise BrokenCaseError(f"fixture {case.fixture}: {made.stderr.strip()}")
    for wanted in case.fetch:
        fetch.bring(wanted, workspace, cache)
    return workspace


async def _play(suite: Suite, case: Case, policy: Policy, workspace: Path, home: Path) -> Report:
    box = Sandbox.create(
        policy=policy,
        workspace=workspace,
        run_id="eval",
        labels={"case": case.name, "version": str(case.version)},
        copy_back=False,
        home=home,
    )
    async with box:
        for phase in PHASES:
            steps = [step for step in case.steps if step.phase == phase]
            if phase == "setup" and suite.stages[case.stage]:
                steps = [Step(phase="setup", run=suite.stages[case.stage]), *steps]
            if not steps and phase != "agent":
                continue
            await box.phase(phase)
            for number, step in enumerate(steps):
                await _step(box, step, step.id or f"{phase}-{number}")
        return await box.verdict()


async def _step(box: Sandbox, step: Step, step_id: str) -> None:
    done = await box.exec(step.command(), step_id=step_id, actor=step.by, timeout_s=step.timeout_s)
    if done.exit_code == NOT_COMPILED or (step.exit != "any" and done.exit_code != step.exit):
        said = (done.stderr or done.stdout).strip()[-400:]
        raise BrokenCaseError(f"step {step_id} ended with {done.exit_code}, not {step.exit}: {said}")


def judge(case: Case, policy: Policy, report: Report, seconds: float) -> CaseResult:
    """The result of a case from its report."""
    expected: list[Expectation] = list(case.expect)
    held = not report.events.lost and not expected and not case.benign
    if report.events.lost:
        expected += case.expect_if_lost
    found = report.incidents
    labelled = score.labelled(case, expected, found)
    lacking, wrong = labelled.missing(), labelled.false_alarms(policy.penalty.min_confidence)
    state: State
    if report.failure or report.status == "failed":
        state = "broken"
    elif case.benign:
        state = "false_alarm" if wrong else "clean"
    else:
        state = "held" if held else "miss" if lacking else "hit"
    return _result(case, state, report.failure or "").model_copy(
        update={
            "expected": {e.kind: list(e.outcome) for e in expected},
            "missing": lacking,
            "found": found,
            "false": wrong,
            "status": report.status,
            "penalty": report.penalty.value,
            "events": report.events.produced,
            "lost": report.events.lost,
            "seconds": round(seconds, 3),
        }
    )


def _result(case: Case, state: State, note: str, seconds: float = 0.0) -> CaseResult:
    return CaseResult(
        name=case.name,
        kind=case.kind,
        version=case.version,
        title=case.title,
        benign=case.benign,
        honest=case.honest,
        state=state,
        note=note,
        expected={e.kind: list(e.outcome) for e in case.expect},
        allowed=list(case.allow),
        seconds=round(seconds, 3),
    )
