"""Coverage, failure reports, group commits of verdicts, and the bare install."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from invigilator.ebpf.sensor import Loss
from invigilator.guard.failed import failed_report
from invigilator.guard.keep import Keeper
from invigilator.guard.order import CommandOrder, SandboxOrder
from invigilator.guard.progress import Progress
from invigilator.guard.verdict import Course, Evidence, coverage, judge
from invigilator.incidents.spool import Spool, SpoolFullError
from invigilator.profiles import library
from invigilator.profiles.policy import PhaseRules, Policy, Syscalls

POLICY = Policy(name="plain")
ORDER = SandboxOrder(policy=library.load("swe-task"), rollout_id="r")


def evidence(**changes: object) -> Evidence:
    loss = Loss(produced=10, lost=0)
    return Evidence(
        **{"incidents": [], "final": True, "loss": loss, "stored": 10, "shipped": 10, "watermark": 10}
        | changes
    )


def test_a_whole_record_is_ok_and_denials_are_not_claimed():
    states = coverage([POLICY], evidence())
    assert states.pop("denial") == "disabled"
    assert set(states.values()) == {"ok"}


def test_a_loss_degrades_its_class_only():
    states = coverage([POLICY], evidence(loss=Loss(10, 2, {("file", "ring_full"): 2})))
    assert states["file"] == "degraded" and states["process"] == states["network"] == "ok"


@pytest.mark.parametrize("loss", [Loss(10, 2, {("sensor", "vanished"): 2}), Loss(10, 0, {}, unattributed=1)])
def test_a_loss_of_unknown_class_or_owner_degrades_all(loss):
    assert set(coverage([POLICY], evidence(loss=loss)).values()) == {"degraded", "disabled"}


@pytest.mark.parametrize("allowed", ["io_uring", "foreign_abi"])
def test_a_way_round_the_hook_that_the_policy_allows_degrades_files_and_network(allowed):
    policy = POLICY.model_copy(update={"syscalls": Syscalls(**{allowed: "allow"})})
    states = coverage([policy], evidence())
    assert states["file"] == states["network"] == "degraded" and states["process"] == "ok"


@pytest.mark.parametrize("phase", ["setup", "agent", "verify"])
def test_so_does_one_that_a_single_phase_allows(phase):
    rules = {phase: PhaseRules(syscalls=Syscalls(io_uring="allow"))}
    states = coverage([POLICY.model_copy(update={"phases": rules})], evidence())
    assert states["file"] == states["network"] == states["output"] == "degraded" and states["process"] == "ok"


def test_what_was_not_read_to_the_end_is_no_verdict():
    course = Course(str(uuid.uuid4()), Progress(failure="the spool is full"), {})
    report = judge(ORDER, course, evidence(final=False))
    assert report.status == "failed" and report.penalty.value is None and report.penalty.drop


def test_events_that_could_not_be_judged_are_a_failure_and_never_a_zero():
    course = Course(str(uuid.uuid4()), Progress(), {})
    report = judge(ORDER, course, evidence(unjudged="ValueError: boom"))
    assert (report.status, report.failure) == ("failed", "ValueError: boom")
    assert report.penalty.value is None


def test_a_loss_that_a_penalised_detector_needs_leaves_no_value():
    course = Course(str(uuid.uuid4()), Progress(), {})
    weighed = ORDER.policy.penalty.model_copy(update={"weights": {"system_binary_overwrite": 2.0}})
    order = ORDER.model_copy(update={"policy": ORDER.policy.model_copy(update={"penalty": weighed})})
    report = judge(order, course, evidence(loss=Loss(10, 2, {("file", "ring_full"): 2}), stored=8))
    assert report.status == "partial" and report.penalty.value is None
    assert report.events.lost_by == {"file/ring_full": 2}


def report_of(number: int):
    return failed_report(ORDER, f"failure {number}", sandbox_id=str(uuid.UUID(int=number)))


def test_verdicts_that_come_together_share_segments_and_none_is_lost(tmp_path):
    spool = Spool(tmp_path / "spool")
    keeper = Keeper(spool, tmp_path)
    threads = [threading.Thread(target=keeper.keep, args=(ORDER, report_of(n), 0)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [segment for segment in spool.pending() if segment.table == "rollouts"]
    assert sum(segment.rows for segment in kept) == 40
    assert len(kept) < 20
    spool.close()


def test_a_full_spool_is_told_to_every_waiting_verdict(tmp_path):
    spool = Spool(tmp_path / "spool", max_bytes=1000)
    keeper = Keeper(spool, tmp_path)
    failures = []

    def keep(number: int) -> None:
        try:
            keeper.keep(ORDER, report_of(number), 0)
        except SpoolFullError as error:
            failures.append(error)

    threads = [threading.Thread(target=keep, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(failures) == 8
    spool.close()


def mark(folder: Path) -> Path:
    record = {
        "sandbox_id": str(uuid.uuid4()),
        "started_at": "2026-01-01T00:00:00+00:00",
        "order": ORDER.model_dump(mode="json"),
    }
    file = folder / f"{record['sandbox_id']}.json"
    file.write_text(json.dumps(record))
    return file


def test_a_full_spool_keeps_a_dead_agents_rollouts_for_the_next(tmp_path):
    left = mark(tmp_path)
    full = Spool(tmp_path / "spool", max_bytes=1000)
    assert Keeper(full, tmp_path).recover() == 0
    assert left.exists()
    full.close()
    roomy = Spool(tmp_path / "spool")
    assert Keeper(roomy, tmp_path).recover() == 1
    assert not left.exists()
    assert "rollouts" in {segment.table for segment in roomy.pending()}
    roomy.close()


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{}", b"\xff", b'{"order": 1}', b"[" * 100_000])
def test_a_damaged_mark_keeps_no_agent_from_starting(tmp_path, content):
    (tmp_path / "damaged.json").write_bytes(content)
    left = mark(tmp_path)
    spool = Spool(tmp_path / "spool")
    assert Keeper(spool, tmp_path).recover() == 1
    assert not left.exists()
    spool.close()


def test_whose_command_it_is_goes_by_the_phase_unless_said():
    command = CommandOrder(command="true")
    assert [command.actor_in(phase) for phase in ("setup", "agent", "verify")] == [
        "platform",
        "agent",
        "platform",
    ]
    assert CommandOrder(command="true", actor="agent").actor_in("verify") == "agent"
    assert command.arguments() == ["bash", "-c", "true"]


def test_the_public_names_need_nothing_of_a_node():
    absent = ("numpy", "pyarrow", "pyroute2", "fastapi", "uvicorn", "chdb", "clickhouse_connect", "pandas")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
        "import invigilator\n"
        "print([getattr(invigilator, name).__name__ for name in invigilator.__all__])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "SyncSandbox" in done.stdout and "PenaltyClient" in done.stdout
