"""`guard policy learn` and `prove`, as an engineer types them, on a node where every tier is in force."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from node import HOME, Node
from record import served

from invigilator.ebpf.events import Kind

WORK = "cat /etc/passwd >out && mkdir -p d && echo x >d/e && tar cf d.tar d && python3 -c 'print(6 * 7)'"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    home = tmp_path_factory.mktemp("prove") / "home"
    (home / "roots").mkdir(parents=True)
    for launcher in (HOME / "roots").glob("launcher-*"):
        shutil.copy2(launcher, home / "roots")
    with served() as (url, record):
        made = Node(home, url, record)
        with made.agent():
            yield made


@dataclass(frozen=True)
class Proof:
    """What a policy that was learned from a small recording is proven to be."""

    code: int
    rows: list[dict[str, Any]]
    proven: bool
    policy: str

    def states(self, *, tier: str) -> dict[str, str]:
        """What was put to a tier's test."""
        return {row["what"]: row["state"] for row in self.rows if tier in row["tier"].split(", ")}


@pytest.fixture(scope="module")
def proof(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Proof:
    workspace = tmp_path_factory.mktemp("work")
    report, tight = workspace.parent / "report.json", workspace.parent / "tight.yaml"
    options = ("--policy", "swe-task", "--workspace", workspace, "--no-copy-back", "--rollout", "small")
    run = node.guard("run", *options, "--report", report, "--", "bash", "-c", WORK)
    assert run.returncode == 0, run.stderr
    assert json.loads(report.read_text())["enforcement"]["apparmor"] == "enforce"
    learned = node.guard("policy", "learn", "--from", "small", "--extends", "swe-task", "--out", tight)
    assert learned.returncode == 0, learned.stderr
    proven = node.guard("policy", "prove", tight, "--from", "small", "--workspace", workspace, "--json")
    assert proven.stdout, proven.stderr
    found = json.loads(proven.stdout)
    print(
        *(f"{row['state']:9} {row['tier']:20} {row['what']}: {row['found']}" for row in found["rows"]),
        sep="\n",
    )
    return Proof(proven.returncode, found["rows"], found["proven"], tight.read_text())


def test_the_recorded_command_runs_again_with_nothing_refused(proof: Proof) -> None:
    states = {row["what"]: (row["state"], row["found"]) for row in proof.rows}
    assert states["small: it ends as it did"] == ("proven", "0, was 0")
    assert states["small: no file is refused that was not"] == ("proven", "0 refused")
    assert states["small: no call is refused that was not"] == ("proven", "0 refused")
    assert "require" in proof.policy and "apparmor" in proof.policy


def test_no_attack_works(proof: Proof) -> None:
    failed = [row for row in proof.rows if row["state"] == "failed"]
    assert (proof.code, proof.proven, failed) == (0, True, [])


def test_what_apparmor_is_to_refuse_is_refused(proof: Proof) -> None:
    states = proof.states(tier="apparmor")
    assert set(states.values()) <= {"proven", "not shown"}
    for attack in ("grader_read", "grader_by_rename", "reward_write", "read /grader"):
        assert [state for what, state in states.items() if f"attack {attack}:" in what] == ["proven"], states


def test_what_apparmor_alone_refuses_is_refused(proof: Proof) -> None:
    alone = {row["what"]: row["state"] for row in proof.rows if row["tier"] == "apparmor"}
    for use in ("read /etc/hosts", "write /etc/attack", "write /tmp/attack"):
        assert alone[f"attack {use}: a file that no rule names"] == "proven", alone


def test_calls_are_refused_by_seccomp(proof: Proof) -> None:
    states = proof.states(tier="seccomp")
    assert states["attack call ptrace: a system call that the policy denies"] == "proven"
    assert "failed" not in states.values()


def test_a_proof_leaves_no_sandbox_and_its_rollouts_have_a_run_of_their_own(node: Node, proof: Proof) -> None:
    assert not [one for one in (node.home / "sandboxes").iterdir() if one.is_dir()]
    assert not list((node.home / "rollouts").iterdir())
    runs = {row["run_id"] for row in node.record.rows("rollouts") if row["rollout_id"] != "small"}
    assert runs == {"proof"}


def test_what_was_refused_under_proof_is_in_the_record(node: Node, proof: Proof) -> None:
    refused = [row for row in node.record.rows("events") if row["kind"] in (int(Kind.DENIAL), "DENIAL")]
    told = {(row["path"], row["text"].partition(b" ")[0]) for row in refused}
    assert {(b"/etc/hosts", b"open"), (b"/etc/attack", b"mknod")} <= told, sorted(told)
    assert any(b"keyctl" in row["text"] for row in refused), sorted(told)
