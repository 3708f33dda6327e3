"""A second client of a rollout that runs: `guard phase`, `guard exec`, and what they may not."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest
from conftest import TIMEOUT_S, wait_until

from invigilator import GuardError, SyncSandbox
from invigilator.guard.cli.joining import live_rollouts
from invigilator.guard.joined import Joined
from invigilator.guard.link import Link


@pytest.fixture
def home(node, monkeypatch):
    for name, value in node.environment().items():
        monkeypatch.setenv(name, value)
    return node.home


def in_background(node, *words):
    """A `guard` command under way, once it has written its first line."""
    process = subprocess.Popen(
        node.command(*words), env=node.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_a_second_client_s_command_has_its_streams_status_step_and_actor(node, home):
    with SyncSandbox.create(rollout_id="joined-exec") as box:
        box.phase("agent")
        assert live_rollouts("joined-e") == ["joined-exec"]
        script = "cat; echo err >&2; exit 7"
        words = ["exec", "joined-exec", "--as", "platform", "--step", "look", "--", "bash", "-c", script]
        done = node.guard(*words, stdin=None, input=b"in\n")
        assert (done.returncode, done.stdout, done.stderr) == (7, b"in\n", b"err\n")
        by_id = node.guard("exec", box.sandbox_id, "--", "no-such-command")
        assert by_id.returncode == 127
        report = box.verdict()
    assert report.failure is None
    query = (
        "SELECT DISTINCT e.actor AS actor, s.step_id AS step_id, e.phase AS phase FROM events_readable e "
        "JOIN steps s ON s.sandbox_id = e.sandbox_id AND s.step = e.step "
        "WHERE e.rollout_id = 'joined-exec' AND e.kind = 'exec'"
    )
    rows = json.loads(node.guard("sql", "--json", query).stdout)
    assert rows == [{"actor": "platform", "step_id": "look", "phase": "agent"}]
    assert live_rollouts("joined-e") == []


def test_a_second_client_begins_phases_that_the_first_then_finds_begun(node, home):
    with SyncSandbox.create(rollout_id="joined-phase") as box:
        early = node.guard("exec", "joined-phase", "--", "true")
        assert early.returncode == 125 and b"no phase of the rollout has begun" in early.stderr
        assert node.guard("phase", "joined-phase", "agent").returncode == 0
        box.phase("agent")
        box.exec("sleep 7001 >/dev/null 2>&1 &")
        told = node.guard("phase", "joined-phase", "verify", "--json")
        assert json.loads(told.stdout) == {"rollout_id": "joined-phase", "phase": "verify"}
        again = node.guard("phase", "joined-phase", "verify")
        assert again.returncode == 1 and b"phase verify has begun already" in again.stderr
        back = node.guard("phase", "joined-phase", "agent")
        assert back.returncode == 1 and b"phases never go back" in back.stderr
        box.phase("verify")
        assert box.exec("echo checked").stdout == "checked\n"
        report = box.verdict()
    assert [one.name for one in report.phases] == ["agent", "verify"]
    assert [one.kind for one in report.incidents] == ["phase_survivor"]


def test_guard_run_goes_on_where_another_has_begun_verify(node, tmp_path):
    begun = tmp_path / "report.json"
    run = in_background(
        node, "run", "--rollout", "moved-on", "--report", begun, "--verify", "echo verified", "--",
        "bash", "-c", "echo begun; exec sleep 7002",
    )  # fmt: skip
    assert node.guard("phase", "moved-on", "verify").returncode == 0
    _, said = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 137 and "verified" in said
    report = json.loads(begun.read_text())
    assert [one["name"] for one in report["phases"]] == ["agent", "verify"]
    assert report["failure"] is None


def test_the_rollout_s_end_ends_a_joined_command_and_says_so(node, home):
    with SyncSandbox.create(rollout_id="joined-end") as box:
        box.phase("agent")
        other = in_background(node, "exec", "joined-end", "--", "bash", "-c", "echo begun; exec sleep 7003")
        box.verdict()
        _, said = other.communicate(timeout=TIMEOUT_S)
        assert other.returncode == 125 and "the rollout ended, and the command with it" in said
        late = node.guard("exec", "joined-end", "--", "true")
        assert late.returncode == 125 and b"no rollout 'joined-end' is running here" in late.stderr


def test_a_second_client_that_goes_takes_its_command_and_nothing_else(node, home):
    with SyncSandbox.create(rollout_id="joined-gone") as box:
        box.phase("agent")
        script = "echo $$ >/tmp/pid; echo begun; exec sleep 7004"
        other = in_background(node, "exec", "joined-gone", "--", "bash", "-c", script)
        other.kill()
        other.wait()
        wait_until(lambda: box.exec("kill -0 $(cat /tmp/pid)").exit_code, TIMEOUT_S)
        report = box.verdict()
    assert report.failure is None


def test_what_is_not_the_second_client_s_to_do_is_refused(node, home):
    async def ask_for_the_verdict(rollout):
        async with Joined(rollout, home) as box:
            await box._link.ask("verdict", failure=None)

    async def join_twice(rollout):
        link = await Link.open(home, start=False)
        try:
            await link.ask("join", rollout=rollout)
            await link.ask("join", rollout=rollout)
        finally:
            await link.close()

    with SyncSandbox.create(rollout_id="joined-twin") as box, SyncSandbox.create(rollout_id="joined-twin"):
        with pytest.raises(GuardError, match="only who began the rollout ends it"):
            asyncio.run(ask_for_the_verdict(box.sandbox_id))
        with pytest.raises(GuardError, match="has a sandbox already"):
            asyncio.run(join_twice(box.sandbox_id))
        with pytest.raises(GuardError, match=f"2 sandboxes; name one of them: .*{box.sandbox_id}"):
            asyncio.run(ask_for_the_verdict("joined-twin"))
        with pytest.raises(GuardError, match=r"running: .*'joined-twin'"):
            asyncio.run(ask_for_the_verdict("joined-none"))


def test_without_an_agent_none_is_started_to_say_that_no_rollout_runs(own_node):
    done = own_node.guard("phase", "r1", "verify")
    assert done.returncode == 1 and b"no rollout runs here: there is no agent" in done.stderr
    assert not own_node.home.run.exists()
