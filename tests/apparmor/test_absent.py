"""Without AppArmor a policy that requires it starts nothing, and others say that it is absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from invigilator.sandbox import apparmor

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes need root"),
    pytest.mark.skipif(not Path("/sys/kernel/btf/vmlinux").exists(), reason="the sensor needs BTF"),
    pytest.mark.skipif(apparmor.tier().state != "absent", reason="this machine has AppArmor"),
]


def guard(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "invigilator.guard.cli.main", *words]
    environment = {**os.environ, "INVIGILATOR_HOME": str(folder / "home"), "INVIGILATOR_IDLE_S": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )


def test_a_required_tier_that_is_missing_starts_no_sandbox(tmp_path: Path) -> None:
    policy = tmp_path / "strict.yaml"
    policy.write_text("version: 1\nname: strict\nextends: base\nrequire: [..., apparmor]\n")
    started = tmp_path / "started"
    done = guard(tmp_path, "run", "--policy", str(policy), "--", "touch", str(started))
    assert done.returncode == 125
    assert "requires apparmor, which is not in force here" in done.stderr
    report = tmp_path / "report.json"
    done = guard(tmp_path, "run", "--policy", "base", "--report", str(report), "--", "true")
    assert done.returncode == 0, done.stderr
    told = json.loads(report.read_text())
    assert told["enforcement"]["apparmor"] == "absent"
    assert told["coverage"]["denial"] == "disabled"
