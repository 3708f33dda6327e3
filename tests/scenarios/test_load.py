"""Verdicts under load: what one sandbox does to the machine is held against no other."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from invigilator.guard.evaluation.case import run_case
from invigilator.guard.evaluation.homes import Homes
from invigilator.guard.evaluation.report import CaseResult
from invigilator.guard.evaluation.suite import Case, Suite

FLOODS = ("sensor_flood/distinct-paths-in-c", "sensor_flood/eight-kinds-at-once")
STEP_TIMEOUT_S = 120.0
# Each makes fewer events in all than half of a middle ring holds: by itself it cannot have filled one.
INNOCENT = (
    "honest/repair-and-pass",
    "service_scan/wait-for-port",
    "service_scan/workers-on-loopback",
    "reward_forge/verifier-writes",
)


def beside(case: Case) -> Case:
    """The case in the same agent as the floods, which leave it little of the machine."""
    steps = [step.model_copy(update={"timeout_s": STEP_TIMEOUT_S}) for step in case.steps]
    return case.model_copy(update={"agent": "middle-rings", "steps": steps})


def test_a_sandbox_beside_one_that_floods_is_not_accused_and_not_dropped(
    suite: Suite, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("real sandboxes need root")
    cases = {case.name: beside(case) for case in suite.cases}

    async def all_at_once(homes: Homes) -> list[CaseResult]:
        home = await asyncio.to_thread(homes.of, cases[FLOODS[0]])
        runs = (
            run_case(suite, cases[name], home, tmp_path / name.replace("/", "-"), tmp_path / "cache")
            for name in (*FLOODS, *INNOCENT)
        )
        return list(await asyncio.gather(*runs))

    with Homes(tmp_path / "homes") as homes:
        results = {result.name: result for result in asyncio.run(all_at_once(homes))}
    for name in INNOCENT:
        found = results[name]
        assert found.state == "clean", (name, found.note, found.found)
        assert [one.kind for one in found.found if one.kind == "sensor_flood"] == []
        # What the others' flood cost it is unknown, never clean; what it lost nothing of is judged.
        assert found.penalty == (None if found.lost else 0.0), name
        assert found.status == ("partial" if found.lost else "final"), name
    # Whether a flood is told, tests/kernel/test_loss.py says of rings that nobody reads: here a quick reader
    # may have taken all.
    accused = [name for name in FLOODS if "sensor_flood" in {one.kind for one in results[name].found}]
    if not accused:
        pytest.skip("no flood filled the rings: there was nothing to attribute")
