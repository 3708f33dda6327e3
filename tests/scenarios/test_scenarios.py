"""Every quick scenario of the suite, for real: the misbehaviour is found, the look-alike is not accused."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from invigilator.guard.evaluation.document import one_line
from invigilator.guard.evaluation.report import CaseResult
from invigilator.guard.evaluation.suite import Case, load_suite

QUICK = [case for case in load_suite(Path(__file__).parent).cases if not case.slow]


class Runs(Protocol):
    def result(self, case: Case) -> CaseResult: ...


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_scenario(case: Case, runs: Runs) -> None:
    result = runs.result(case)
    if result.state == "skipped":
        pytest.skip(result.note)
    if result.state == "held":
        pytest.skip("the sensor lost nothing, so it had nothing to report")
    found = [f"{i.kind} {i.outcome} {i.confidence}: {i.summary}" for i in result.found]
    assert result.state in ("hit", "clean"), "\n".join([one_line(result), *found])
    assert not result.false, "\n".join([one_line(result), *found])
