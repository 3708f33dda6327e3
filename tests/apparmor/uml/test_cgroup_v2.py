"""Limits and phases in a kernel that has cgroup v2 alone."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from uml_boxes import Box

from invigilator.profiles.policy import IoLimits, Limits, Policy
from invigilator.sandbox.base import LimitHit, SandboxError, SandboxSpec
from invigilator.sandbox.hierarchies import CONTROLLERS, Hierarchies
from invigilator.sandbox.process import ProcessBackend

MIB = 1 << 20
SMALL = Policy(name="small", limits=Limits(memory_bytes=96 * MIB, pids=24, cpus=0.5, disk_bytes=64 * MIB))


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    return make_box(SMALL)


def test_v2_carries_every_limit() -> None:
    found = Hierarchies.find()
    assert not found.v1
    assert found.limits_in_v2
    assert not found.missing
    assert set(CONTROLLERS) <= found.v2_controllers


def test_the_limits_are_in_force(box: Box) -> None:
    limited = box.sandbox._groups.limited
    assert (limited / "memory.max").read_text() == f"{96 * MIB}\n"
    assert (limited / "pids.max").read_text() == "24\n"
    quota, period = map(int, (limited / "cpu.max").read_text().split())
    assert quota * 2 == period
    assert box.sandbox.enforcement()["cgroup"] == "enforce"


def test_disks_are_limited(make_box: Callable[..., Box]) -> None:
    limits = SMALL.limits.model_copy(
        update={"disk_bytes": 256 * MIB, "io": IoLimits(write_bytes_per_s=4 * MIB)}
    )
    box = make_box(SMALL.model_copy(update={"limits": limits}))
    found = box.sandbox._groups.disks
    assert found is not None and found.disks.written
    assert f"{found.disks.written[0].number} rbps=max wbps={4 * MIB}" in (found.folder / "io.max").read_text()
    assert box.sandbox.enforcement()["io"] == "enforce", found.disks
    began = time.monotonic()
    assert box.sh("dd if=/dev/zero of=/root/file bs=1M count=12 conv=fsync").code == 0
    assert time.monotonic() - began >= 2


def test_out_of_memory_ends_the_command_and_is_told(box: Box) -> None:
    done = box.run("python3", "-c", f"x = bytearray({200 * MIB}); print(len(x))")
    assert (done.status.reason, done.code) == ("oom", 137)
    assert "memory" in [hit.limit for hit in box.sandbox.limits_hit()]


def test_too_many_processes_are_refused_and_told(box: Box) -> None:
    done = box.sh("for i in $(seq 40); do sleep 5 & done; echo $?")
    assert "fork" in done.text
    assert "pids" in [hit.limit for hit in box.sandbox.limits_hit()]


def test_who_wants_more_processor_time_than_it_may_have_is_told_of(box: Box) -> None:
    held_back: list[LimitHit] = []
    while not held_back:
        assert box.sh("for ((i = 0; i < 200000; i++)); do :; done").code == 0
        held_back = [hit for hit in box.sandbox.limits_hit() if hit.limit == "cpu"]
    assert held_back[0].value >= 1


def test_each_phase_has_its_leaf_and_survivors_are_seen_and_ended(box: Box) -> None:
    assert len(set(box.sandbox.cgroups().values())) == 3
    assert box.sh("sleep 60 & sleep 60 & echo started").text == "started\n"
    assert len(box.sandbox.survivors("verify")) == 2
    box.sandbox.end_processes("agent")
    assert not box.sandbox.survivors("verify")
    assert box.run("true").code == 0


def test_a_fork_bomb_is_ended_with_its_sandbox_and_nothing_stays(backend: ProcessBackend) -> None:
    made = backend.prepare(SandboxSpec(uuid.uuid4(), SMALL))
    try:
        made.start()
        folder = made._groups.v2
        Box(made).sh("bomb() { bomb | bomb & }; bomb; sleep 0.3")
    finally:
        made.remove()
    assert not folder.exists()


def test_what_a_dead_agent_left_is_swept(backend: ProcessBackend) -> None:
    family = backend.parent_cgroup().parent.parent
    dead = family / "999999-1" / "0" / str(uuid.uuid4())
    dead.mkdir(parents=True)
    assert backend.sweep() == 1
    assert not (family / "999999-1").exists()
    assert backend.parent_cgroup().is_dir()


def test_controllers_that_cannot_be_passed_on_are_an_error_that_says_so(tmp_path: Path) -> None:
    from invigilator.sandbox import cgroupfiles

    with pytest.raises(SandboxError, match="cannot pass controllers on"):
        cgroupfiles.pass_on(tmp_path / "gone", frozenset(CONTROLLERS))
