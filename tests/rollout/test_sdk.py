"""The SDK: many commands in one sandbox, at once, cancelled, timed out; files, phases, limits, replay."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from conftest import wait_until

from invigilator import GuardError, Sandbox, SyncSandbox


@pytest.fixture
def home(node, monkeypatch):
    for name, value in node.environment().items():
        monkeypatch.setenv(name, value)
    return node.home


def policy_with(tmp_path: Path, *lines: str) -> str:
    file = tmp_path / "limited.yaml"
    file.write_text("\n".join(["version: 1", "name: limited", "extends: base", *lines]) + "\n")
    return str(file)


def test_commands_at_once_keep_their_own_streams_and_steps(home):
    async def run():
        async with Sandbox.create(policy="base", rollout_id="at-once") as box:
            assert box.rollout_id == "at-once" and box.enforcement["cgroup"] == "enforce"
            scripts = [f"echo out-{n}; echo err-{n} >&2; sleep 0.{n}; exit {n}" for n in range(8)]
            done = await asyncio.gather(
                *(box.exec(script, step_id=f"call-{n}") for n, script in enumerate(scripts))
            )
            assert [r.exit_code for r in done] == list(range(8))
            assert [r.stdout for r in done] == [f"out-{n}\n" for n in range(8)]
            assert [r.stderr for r in done] == [f"err-{n}\n" for n in range(8)]
            return await box.verdict()

    report = asyncio.run(run())
    assert report.status == "final" and report.events.lost == 0
    assert report.events.produced == report.events.stored


def test_what_a_command_reads_and_writes_may_be_large(home):
    with SyncSandbox.create() as box:
        data = os.urandom(5 << 20)
        assert box.exec(["cat"], stdin=data).stdout_bytes == data
        assert box.exec("exec 0<&-; echo unread", stdin=data).stdout == "unread\n"


def test_a_cancelled_command_is_ended_and_the_sandbox_goes_on(home):
    async def run():
        async with Sandbox.create() as box:
            task = asyncio.create_task(box.exec("echo $$ > /tmp/pid; exec sleep 7781"))
            while (await box.exec("test -s /tmp/pid")).exit_code:
                await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await box.exec("kill -0 $(cat /tmp/pid)")).exit_code != 0
            return await box.verdict()

    assert asyncio.run(run()).status == "final"


def test_a_command_past_its_time_is_ended_and_the_next_runs(home):
    with SyncSandbox.create() as box:
        for limit_s in (0.5, 5, 50):  # on a busy machine the shell may not have begun in a shorter time
            late = box.exec("echo begun; sleep 1000", timeout_s=limit_s)
            assert (late.exit_code, late.reason) == (124, "timeout")
            if late.stdout:
                break
        assert late.stdout == "begun\n"
        assert box.exec("echo alive").stdout == "alive\n"


def test_files_go_in_and_out_and_never_through_a_link_out(home, workspace):
    secret = workspace.parent / "secret"
    secret.write_text("host")
    with SyncSandbox.create(workspace=workspace) as box:
        box.write_file("/workspace/bin/tool", "#!/bin/sh\necho tool\n", mode=0o755)
        assert box.exec(["/workspace/bin/tool"]).stdout == "tool\n"
        box.exec(f"printf '\\377\\000' > out; ln -s {secret} link; ln -s /proc/1/root{secret} deep")
        assert box.read_file("/workspace/out") == b"\xff\x00"
        for name in ("link", "deep", "none"):
            with pytest.raises(GuardError):
                box.read_file(f"/workspace/{name}")
        box.write_file("/workspace/deep", "put in the link's place")
        box.verdict()
        assert box.read_file("/workspace/out") == b"\xff\x00"
    assert secret.read_text() == "host"


def test_phases_never_go_back_and_nothing_runs_after_the_verdict(home):
    with SyncSandbox.create() as box:
        box.phase("setup")
        box.exec("touch /tmp/made-in-setup")
        box.phase("agent")
        assert box.exec("test -e /tmp/made-in-setup").exit_code == 0
        box.phase("verify")
        with pytest.raises(GuardError, match="never go back"):
            box.phase("agent")
        first = box.verdict()
        assert box.verdict() == first
        assert [phase.name for phase in first.phases] == ["setup", "agent", "verify"]
        with pytest.raises(GuardError, match="has ended"):
            box.exec("true")


def test_a_failure_on_the_harness_side_is_no_reward_of_zero(home):
    with SyncSandbox.create() as box:
        box.exec("true")
        report = box.verdict(failure="the model server went away")
    assert report.status == "failed" and report.failure == "the model server went away"
    assert report.penalty.value is None and report.penalty.drop


def test_a_process_left_in_the_background_does_not_hold_a_command_up(home):
    with SyncSandbox.create() as box:
        done = box.exec("sleep 7782 & echo started", timeout_s=60)
        assert (done.reason, done.stdout) == ("exited", "started\n")
        assert box.exec("pgrep -f 'sleep 7782' || ls /proc | grep -c '^[0-9]'").exit_code == 0


def test_the_time_to_live_ends_everything(home, tmp_path):
    with SyncSandbox.create(policy=policy_with(tmp_path, "limits: {ttl: 2s}")) as box:
        done = box.exec("exec sleep 7783")
        assert done.reason == "limit"
        with pytest.raises(GuardError, match="time to live"):
            box.exec("true")
        report = box.verdict()
    assert report.status == "final" and report.exit is not None and report.exit.reason == "limit"


def test_output_past_the_limit_is_cut_and_the_command_goes_on(home, tmp_path):
    with SyncSandbox.create(policy=policy_with(tmp_path, "limits: {output: 1MiB}")) as box:
        done = box.exec("head -c 5000000 /dev/zero; echo end > /tmp/end")
        assert done.exit_code == 0 and done.output_cut
        assert len(done.stdout_bytes) <= 1 << 20
        assert box.exec("cat /tmp/end").stdout == ""
        assert box.read_file("/tmp/end") == b"end\n"


def test_memory_past_the_limit_is_told(home, tmp_path):
    with SyncSandbox.create(policy=policy_with(tmp_path, "limits: {memory: 64MiB}")) as box:
        done = box.exec(["python3", "-c", "x = bytearray(300 << 20)"])
        assert done.reason == "oom" and done.exit_code == 137
        assert box.exec("echo alive").stdout == "alive\n"


def test_a_full_disk_inside_is_enospc_and_no_harm_to_the_host(home, tmp_path):
    with SyncSandbox.create(policy=policy_with(tmp_path, "limits: {disk: 32MiB}")) as box:
        done = box.exec("head -c 100000000 /dev/zero > /tmp/big")
        assert done.exit_code != 0 and "No space left" in done.stderr
        assert box.exec("rm /tmp/big; echo alive").stdout == "alive\n"


def test_a_sandbox_that_is_left_without_a_verdict_is_gone_and_failed(node, home):
    async def run():
        async with Sandbox.create(rollout_id="left") as box:
            await box.exec("sleep 7784 & true")

    asyncio.run(run())
    wait_until(lambda: not list(home.rollouts.iterdir()), 180)
    done = node.guard("sql", "--json", "SELECT failure FROM rollouts WHERE rollout_id = 'left'")
    assert b"left without asking" in done.stdout, done.stderr


def test_a_wrong_step_or_timeout_is_refused_where_it_is_asked_for(home):
    with SyncSandbox.create() as box:
        for wrong in ({"timeout_s": -1}, {"step_id": "x" * 2000}, {"actor": "nobody"}):
            with pytest.raises(ValueError):
                box.exec("true", **wrong)


def test_a_folder_that_is_not_there_is_said(home):
    with SyncSandbox.create() as box, pytest.raises(GuardError, match="working directory"):
        box.exec("true", cwd="/no/such/folder")


def test_a_replay_gives_the_same_verdict_byte_for_byte(node, home):
    with SyncSandbox.create(policy="swe-task", rollout_id="again") as box:
        box.exec("echo evil > /usr/bin/gcc; cat /grader/* /solution/*; ls /etc", step_id="call-1")
        box.exec("for n in $(seq 50); do cat /etc/passwd; done >/dev/null; rm /usr/bin/cc")
        assert box.verdict().incidents
    done = node.guard("replay", "again")
    assert done.returncode == 0, done.stdout + done.stderr
