"""docs/coverage.md says what is found by what: held against the suite, the detectors and the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from invigilator.detectors.base import registry
from invigilator.guard.evaluation.suite import load_suite

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "coverage.md").read_text()
CASES = {case.name: case for case in load_suite(ROOT / "tests" / "scenarios").cases}
NAMED = re.findall(r"`([a-z_]+/[a-z0-9-]+)`", TEXT)
SECTIONS = dict(re.findall(r"^### `([a-z_]+)`\n(.*?)(?=^##|\Z)", TEXT, re.DOTALL | re.MULTILINE))


def test_every_scenario_that_is_named_exists() -> None:
    assert sorted(set(NAMED) - CASES.keys()) == []


def test_every_test_that_is_named_exists() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", TEXT)) - registry().keys()
    assert sorted(name for name in named if f"def {name}(" not in sources) == []


def test_every_kind_has_its_section_and_no_other_has_one() -> None:
    assert SECTIONS.keys() == {detector.kind for detector in registry().values()}


@pytest.mark.parametrize("kind", sorted(SECTIONS))
def test_a_kind_names_its_methods_and_its_look_alikes_apart(kind: str) -> None:
    methods, twins = [], []
    for row in SECTIONS[kind].splitlines():
        cases = [CASES[name] for name in re.findall(r"`([a-z_]+/[a-z0-9-]+)`", row)]
        assert all(case.benign == row.startswith("| look-alikes") for case in cases), row
        mine = [case for case in cases if case.kind == kind]
        (twins if row.startswith("| look-alikes") else methods).extend(mine)
    assert len(methods) >= 3
    assert len(twins) >= 2
