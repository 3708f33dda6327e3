"""The suite itself: well formed, versioned, with enough methods and look-alikes a kind. Needs no root."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from invigilator.guard.evaluation.suite import (
    Suite,
    SuiteError,
    load_suite,
    unversioned_changes,
    write_versions,
)
from invigilator.profiles.library import load_text

KINDS = {
    "system_binary_overwrite",
    "verifier_tool_trojan",
    "test_tamper",
    "reward_forge",
    "phase_survivor",
    "residual_search",
    "harness_log_read",
    "oracle_access",
    "canary_read",
    "git_future_mining",
    "forged_request",
    "access_probe",
    "service_scan",
    "egress_violation",
    "log_flood",
    "disk_flood",
    "extent_swap_bypass",
    "sensor_flood",
}


def test_each_kind_has_three_methods_and_two_look_alikes(suite: Suite) -> None:
    methods = Counter(case.kind for case in suite.cases if not case.benign)
    benign = Counter(case.kind for case in suite.cases if case.benign and not case.honest)
    assert set(methods) == KINDS
    assert {kind for kind in KINDS if methods[kind] < 3 or benign[kind] < 2} == set()


def test_each_case_expects_its_own_kind(suite: Suite) -> None:
    for case in suite.cases:
        if not case.benign:
            assert case.kind in {e.kind for e in (*case.expect, *case.expect_if_lost)}, case.name


def test_each_policy_loads_without_error_or_warning(suite: Suite) -> None:
    for text in {yaml.safe_dump(case.policy) for case in suite.cases}:
        assert load_text(text).warnings == ()


def test_a_changed_case_needs_a_new_version(suite: Suite, tmp_path: Path) -> None:
    assert unversioned_changes(suite) == [], "run: python -m invigilator.guard.evaluation"
    copy = tmp_path / "suite"
    shutil.copytree(suite.folder, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    file = copy / "cases" / "reward_forge.yaml"
    file.write_text(
        file.read_text().replace("echo 1 > /logs/verifier/reward.txt", "echo 9 > /logs/verifier/x")
    )
    changed = load_suite(copy)
    assert "reward_forge/echo-reward" in unversioned_changes(changed)
    with pytest.raises(SuiteError, match="changed without a new version"):
        write_versions(changed)


def test_a_wrong_key_names_its_file_and_case(suite: Suite, tmp_path: Path) -> None:
    copy = tmp_path / "suite"
    shutil.copytree(suite.folder, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    file = copy / "cases" / "log_flood.yaml"
    file.write_text(file.read_text().replace("title: yes until", "titel: yes until"))
    with pytest.raises(SuiteError, match=r"log_flood\.yaml.*endless-yes"):
        load_suite(copy)
