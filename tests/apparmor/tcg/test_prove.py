"""`guard policy learn` and `prove`, as an engineer types them, on a node where every tier is in force."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HOME = Path("/var/lib/invigilator")
WORK = "cat /etc/passwd >out && mkdir -p d && echo x >d/e && tar cf d.tar d && python3 -c 'print(6 * 7)'"
TIMEOUT_S = 900


class Typed:
    """`guard` commands on a node with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        (self.home / "roots").mkdir(parents=True)
        for launcher in (HOME / "roots").glob("launcher-*"):
            shutil.copy2(launcher, self.home / "roots")

    def guard(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "invigilator.guard.cli.main", *map(str, words)]
        environment = {**os.environ, "INVIGILATOR_HOME": str(self.home), "INVIGILATOR_IDLE_S": "600"}
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def daemon(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Started beforehand: the sensor's programs take this processor longer than a command waits."""
        environment = {**os.environ, "INVIGILATOR_HOME": str(self.home)}
        started = subprocess.Popen([sys.executable, "-m", *words], env=environment, stdin=subprocess.DEVNULL)
        while not (self.home / "run" / f"{name}.sock").exists():
            assert started.poll() is None, f"the {name} ended with {started.returncode}"
            time.sleep(0.2)
        return started


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    made = Typed(tmp_path_factory.mktemp("typed"))
    daemons = [
        made.daemon("agent", "invigilator.guard.agent"),
        made.daemon("serve", "invigilator.guard.cli.main", "serve"),
    ]
    yield made
    for one in daemons:
        one.terminate()
        one.wait(120)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def proof(typed: Typed, workspace: Path) -> tuple[int, dict[str, Any]]:
    """What a policy that was learned from a small recording is proven to be."""
    report = workspace.parent / "report.json"
    options = ("--policy", "swe-task", "--workspace", workspace, "--no-copy-back", "--rollout", "small")
    run = typed.guard("run", *options, "--report", report, "--", "bash", "-c", WORK)
    assert run.returncode == 0, run.stderr
    assert json.loads(report.read_text())["enforcement"]["apparmor"] == "enforce"
    tight = workspace.parent / "tight.yaml"
    learned = typed.guard("policy", "learn", "--from", "small", "--extends", "swe-task", "--out", tight)
    assert learned.returncode == 0, learned.stderr
    proven = typed.guard("policy", "prove", tight, "--from", "small", "--workspace", workspace, "--json")
    assert proven.stdout, proven.stderr
    return proven.returncode, json.loads(proven.stdout)


def test_a_learned_policy_is_proven_with_nothing_left_out(proof: tuple[int, dict[str, Any]]) -> None:
    code, found = proof
    failed = [row for row in found["rows"] if row["state"] == "failed"]
    assert (code, found["proven"], failed) == (0, True, [])
    states = {row["what"]: row["state"] for row in found["rows"]}
    for what in ("it ends as it did", "no file is refused that was not", "no call is refused that was not"):
        assert states[f"small: {what}"] == "proven"


def test_attacks_that_apparmor_alone_refuses_are_proven_to_be(proof: tuple[int, dict[str, Any]]) -> None:
    by_apparmor = [row for row in proof[1]["rows"] if row["tier"] == "apparmor"]
    assert by_apparmor
    assert {row["state"] for row in by_apparmor} <= {"proven", "not shown"}
    assert any(row["state"] == "proven" for row in by_apparmor)


def test_a_proof_leaves_no_sandbox_and_its_rollouts_have_a_run_of_their_own(
    typed: Typed, proof: tuple[int, dict[str, Any]]
) -> None:
    assert not [one for one in (typed.home / "sandboxes").iterdir() if one.is_dir()]
    assert not list((typed.home / "rollouts").iterdir())
    rows = typed.guard("sql", "--json", "SELECT DISTINCT run_id, rollout_id = 'small' AS ours FROM rollouts")
    found = {(row["run_id"], int(row["ours"])) for row in json.loads(rows.stdout)}
    assert found == {("", 1), ("proof", 0)}
