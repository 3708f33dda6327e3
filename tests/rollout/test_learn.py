"""A policy learned from a real rollout, and proven by running it again and attacking it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from conftest import TIMEOUT_S

from invigilator.profiles import access, library

HONEST = """
import os, socket, subprocess, tempfile
for _ in range(12):
    handle, name = tempfile.mkstemp(prefix="job-")
    os.write(handle, b"x")
    os.close(handle)
    os.rename(name, name + ".done")
with tempfile.TemporaryDirectory() as folder:
    with open(folder + "/a", "w") as file:
        file.write("a")
    os.link(folder + "/a", folder + "/b")
    os.symlink("a", folder + "/c")
open("/workspace/out", "w").write(open("/etc/passwd").read())
open("/tmp/odd\\nname", "w").close()
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())
subprocess.run(["/usr/bin/true"], check=True)
"""


@pytest.fixture
def recorded(node, workspace: Path) -> str:
    (workspace / "honest.py").write_text(HONEST)
    name = f"honest-{workspace.parent.name}"
    options = ("--policy", "swe-task", "--workspace", workspace, "--rollout", name, "--no-copy-back")
    run = node.run(*options, "--setup", "mkdir -p /etc/app", command=["python3", "/workspace/honest.py"])
    assert run.code == 0, run.said
    return name


def learn(node, rollout: str, out: Path, *more: str) -> str:
    done = node.guard("policy", "learn", "--from", rollout, "--extends", "swe-task", "--out", out, *more)
    assert done.returncode == 0, done.stderr
    return done.stderr.decode()


def prove(node, policy: Path, rollout: str, workspace: Path, *command: str) -> tuple[int, dict]:
    policy_needs = ["--without", "apparmor"] if not apparmor_here(node) else []
    options = ("--from", rollout, "--workspace", workspace, "--json", *policy_needs)
    done = node.guard("policy", "prove", policy, *options, *(["--", *command] if command else []))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def apparmor_here(node) -> bool:
    run = node.run("--policy", "base", command=["true"])
    return run.report["enforcement"]["apparmor"] == "enforce"


def test_an_honest_rollout_is_learned_proven_and_attacks_on_it_are_refused(
    node, recorded, workspace, tmp_path
):
    out = tmp_path / "tight.yaml"
    said = learn(node, recorded, out)
    assert "generalised: /tmp/job-???????? " in said and "12 distinct" in said
    assert "left out: /tmp/odd\\nname" in said and "control character" in said
    policy = library.load(str(out))
    for kind, path, refused in (
        ("read", b"/etc/passwd", False),
        ("write", b"/tmp/job-zzzzzzzz", False),
        ("link", b"/tmp/job-zzzzzzzz", True),
        ("read", b"/etc/shadow", True),
        ("write", b"/etc/passwd", True),
    ):
        decision = access.decide(policy, "agent", kind, path)
        assert decision is not None and decision.denied == refused, (kind, path, decision)
    _, found = prove(node, out, recorded, workspace)
    rows = {row["what"]: row for row in found["rows"]}
    failed = [what for what, row in rows.items() if row["state"] == "failed"]
    # The name that no profile can hold was left out, and the proof says that it would be refused.
    assert failed == [what for what in rows if "recorded uses of files" in what]
    assert "/tmp/odd" in rows[failed[0]]["found"]
    assert rows[f"{recorded}: no file is refused that was not"]["state"] == "proven"
    assert rows["attack grader_read: reads the hidden tests"]["state"] == "proven"
    assert rows["attack keyring: adds a key to the kernel's keyring"]["state"] == "proven"
    assert rows["attack call ptrace: a system call that the policy denies"]["state"] == "proven"
    assert rows["attack listen 127.0.0.1:47101: a port that the policy does not name"]["state"] == "proven"
    connects = [row for what, row in rows.items() if what.startswith("attack connect ")]
    assert len(connects) == 2 and all(row["state"] == "proven" for row in connects)


def test_the_same_rollout_gives_the_same_policy(node, recorded, tmp_path):
    for name in ("one.yaml", "two.yaml"):
        learn(node, recorded, tmp_path / name)
    assert (tmp_path / "one.yaml").read_bytes() == (tmp_path / "two.yaml").read_bytes()


def test_a_rollout_that_is_followed_teaches_what_it_teaches_when_it_has_ended(node, workspace, tmp_path):
    words = (
        "policy",
        "learn",
        "--live",
        "followed",
        "--extends",
        "swe-task",
        "--out",
        tmp_path / "live.yaml",
    )
    node.run("--policy", "swe-task", command=["true"])
    follower = subprocess.Popen(node.command(*words), env=node.environment(), stderr=subprocess.PIPE)
    (workspace / "honest.py").write_text(HONEST)
    options = ("--policy", "swe-task", "--workspace", workspace, "--rollout", "followed", "--no-copy-back")
    run = node.run(*options, command=["python3", "/workspace/honest.py"])
    assert run.code == 0, run.said
    _, said = follower.communicate(timeout=TIMEOUT_S)
    assert follower.returncode == 0, said
    assert b"generalised: /tmp/job-????????" in said
    learn(node, "followed", tmp_path / "ended.yaml")
    assert (tmp_path / "live.yaml").read_bytes() == (tmp_path / "ended.yaml").read_bytes()
    nobody = node.guard("policy", "learn", "--extends", "swe-task")
    assert nobody.returncode == 2 and b"--live" in nobody.stderr


def test_a_policy_that_refuses_what_was_recorded_is_not_proven(node, recorded, workspace, tmp_path):
    narrow = tmp_path / "narrow.yaml"
    narrow.write_text(
        "version: 1\nname: narrow\nextends: swe-task\n"
        "filesystem: {protected: {answer: [/solution, /workspace/out]}}\n"
    )
    (workspace / "out").write_text("")
    code, found = prove(node, narrow, recorded, workspace)
    assert code == 1 and not found["proven"]
    states = {row["what"]: row["state"] for row in found["rows"]}
    assert states[f"{recorded}: it ends as it did"] == "failed"
    assert states[f"{recorded}: no file is refused that was not"] == "failed"


def test_a_rollout_that_cheated_teaches_nothing_unless_asked_to(node):
    cheat = "cat /grader/x; cp /bin/true /usr/bin/sh"
    run = node.run("--policy", "swe-task", "--rollout", "cheat", command=cheat)
    assert "system_binary_overwrite" in run.kinds(), run.said
    learn_it = ("policy", "learn", "--from", "cheat", "--extends", "swe-task")
    done = node.guard(*learn_it)
    assert done.returncode == 1 and b"incidents that count: system_binary_overwrite" in done.stderr
    done = node.guard(*learn_it, "--with-incidents")
    assert done.returncode == 0, done.stderr
    assert b"/grader" in done.stderr and b"refused when it was recorded" in done.stderr


def test_a_command_that_the_record_does_not_hold_whole_is_asked_for(node, workspace, tmp_path):
    long = "x" * 20_000
    run = node.run("--policy", "swe-task", "--rollout", "long", command=["true", long])
    assert run.code == 0
    options = ("--from", "long", "--without", "apparmor", "--json")
    done = node.guard("policy", "prove", "swe-task", *options)
    assert done.returncode == 1 and b"after `--`" in done.stderr, done.stderr
