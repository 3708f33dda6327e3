"""What a policy says is in force, or said not to be."""

from __future__ import annotations

from pathlib import Path

import pytest


def policy_file(folder: Path, body: str) -> str:
    file = folder / "mine.yaml"
    file.write_text(f"version: 1\nname: mine\nextends: swe-task\n{body}\n")
    return str(file)


@pytest.mark.parametrize("phase", ["setup", "verify"])
def test_a_denial_that_only_apparmor_enforces_starts_no_sandbox_without_it(node, tmp_path, phase):
    mine = policy_file(tmp_path, f"phases: {{{phase}: {{protected: {{reward: {{write: deny}}}}}}}}")
    run = node.run("--policy", mine, command=["true"])
    if run.code == 0:
        assert run.report["enforcement"]["apparmor"] == "enforce"
        return
    assert run.code == 125
    assert f"phases.{phase}.protected.reward denies" in run.said and "write `watch`" in run.said
    checked = node.guard("policy", "check", mine)
    assert (
        f"only AppArmor can deny the class `reward` in phase {phase}"
        in (checked.stdout + checked.stderr).decode()
    )


def test_io_uring_allowed_in_the_agents_phase_leaves_a_partial_record(node, tmp_path):
    mine = policy_file(tmp_path, "phases: {agent: {syscalls: {io_uring: allow}}}")
    run = node.run("--policy", mine, command=["true"])
    assert run.code == 0, run.said
    assert run.report["coverage"]["file"] == run.report["coverage"]["network"] == "degraded"
    assert run.report["coverage"]["process"] == "ok"
