"""Limits of disks hold what a sandbox reads and writes, and say where they do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from invigilator.profiles import limits
from invigilator.profiles.policy import IoLimits, Limits, Policy
from invigilator.sandbox import disks
from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.cgroups import Cgroups
from invigilator.sandbox.disks import Disks
from invigilator.sandbox.hierarchies import DISKS_V1, Hierarchies
from invigilator.sandbox.kernel import attach_loop

if TYPE_CHECKING:
    from conftest import MakeBox

MIB = 1 << 20


def policy_of(disk_bytes: int = 1 << 30, **io: int) -> Policy:
    return Policy(name="test", limits=Limits(disk_bytes=disk_bytes, io=IoLimits(**io)))


@pytest.fixture(autouse=True)
def needs_a_controller() -> None:
    if Hierarchies.find().disks is None:
        pytest.skip("no cgroup controller for disks here: blkio (v1) or io (v2)")


@pytest.mark.parametrize(
    ("io", "script"),
    [
        ({"write_bytes_per_s": 4 * MIB}, "dd if=/dev/zero of=/root/file bs=1M count=12 conv=fsync"),
        ({"read_ops_per_s": 20}, "dd if=/root/file of=/dev/null bs=4k count=60 iflag=direct"),
    ],
)
def test_what_takes_three_seconds_at_the_limit_takes_two_at_least(
    make_box: MakeBox, io: dict[str, int], script: str
) -> None:
    box = make_box(policy_of(**io))
    assert box.sandbox.enforcement()["io"] == "enforce"
    box.sandbox.write_file("/root/file", bytes(MIB))
    began = time.monotonic()
    done = box.sh(script)
    assert done.code == 0, done.err
    assert time.monotonic() - began >= 2


def test_every_disk_that_the_sandbox_uses_is_limited(make_box: MakeBox, workspace: Path) -> None:
    io = {"read_bytes_per_s": 500 * MIB, "write_ops_per_s": 50_000}
    box = make_box(policy_of(**io), workspace=workspace)
    layer = box.sandbox._layer
    assert layer is not None and layer.device is not None
    found = box.sandbox._groups.disks
    assert found is not None
    assert found.disks.written == (disks.named(layer.device.path),)
    assert set(found.disks.read) == {*disks.below(["/usr", workspace])[0]}
    assert found.in_force()


def test_a_layer_in_memory_is_on_no_disk(make_box: MakeBox) -> None:
    box = make_box(policy_of(disk_bytes=16 * MIB, write_bytes_per_s=MIB))
    assert box.sandbox._layer is not None and box.sandbox._layer.in_memory
    assert box.sandbox.enforcement()["io"] == "enforce"
    assert box.sandbox._groups.disks is not None
    assert box.sandbox._groups.disks.disks.written == ()


def test_without_limits_of_disks_there_is_nothing_of_them(make_box: MakeBox) -> None:
    box = make_box(policy_of())
    assert "io" not in box.sandbox.enforcement()
    assert DISKS_V1 not in box.sandbox._groups.v1
    assert box.sandbox._groups.disks is None


def test_the_kernel_is_asked_whether_they_are_in_force(make_box: MakeBox) -> None:
    box = make_box(policy_of(write_bytes_per_s=MIB))
    found = box.sandbox._groups.disks
    assert found is not None and found.in_force()
    found.disks = replace(found.disks, complete=False)
    assert box.sandbox.enforcement()["io"] == "absent"
    found.disks = Disks(written=(disks.Disk("0:0", "/dev/none"),))
    found.put()
    assert box.sandbox.enforcement()["io"] == "absent"


def test_a_process_that_waits_for_a_slow_disk_can_be_halted_and_ended(make_box: MakeBox) -> None:
    """Writes of 128 MiB at a MiB a second: for two minutes no signal would reach one."""
    box = make_box(policy_of(write_bytes_per_s=MIB))
    found = box.sandbox._groups.disks
    assert found is not None
    script = "while dd if=/dev/zero of=/root/file bs=128M count=1 oflag=direct; do :; done"
    command, out, err = box.spawn("bash", "-c", script)
    while not any(number for (_, name), number in found._counts().items() if name == "write_bytes_per_s"):
        assert command.poll() is None, os.read(err, 4096)
        time.sleep(0.01)
    with box.sandbox._groups.frozen():
        pass
    assert found.in_force()
    box.sandbox.end_processes()
    assert command.wait(60).signal == 9
    assert found.in_force()
    os.close(out), os.close(err)


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    made = Cgroups()
    yield made
    made.close()


def test_they_change_while_the_sandbox_runs_and_go(cgroups: Cgroups) -> None:
    on = Disks.of(["/usr"], [], [])
    made = cgroups.make("box", limits.compile(policy_of(write_bytes_per_s=MIB)))
    try:
        cgroups.limit_disks(made, on)
        cgroups.change(made, limits.compile(policy_of(write_bytes_per_s=2 * MIB, read_ops_per_s=9)))
        assert made.disks is not None and made.disks.in_force()
        assert made.disks.limits.write_bytes_per_s == 2 * MIB
        cgroups.change(made, limits.compile(policy_of()))
        texts = [one.read_text() for one in made.disks.folder.glob("*io*") if "_device" in one.name]
        assert not any(str(2 * MIB) in text for text in texts)
    finally:
        made.remove()
    bare = cgroups.make("other", limits.compile(policy_of()))
    try:
        with pytest.raises(SandboxError, match="made without limits of disks"):
            cgroups.change(bare, limits.compile(policy_of(write_bytes_per_s=MIB)))
    finally:
        bare.remove()


def test_a_machine_without_the_controller_says_so() -> None:
    found = Hierarchies.find()
    bare = replace(
        found,
        v1={name: folder for name, folder in found.v1.items() if name != DISKS_V1},
        v2_controllers=found.v2_controllers - {"io"},
    )
    assert bare.disks is None
    cgroups = Cgroups(bare)
    try:
        made = cgroups.make("box", limits.compile(policy_of(write_bytes_per_s=MIB)))
        cgroups.limit_disks(made, Disks.of(["/usr"], [], []))
        assert made.disks is None
        made.remove()
    finally:
        cgroups.close()


def test_the_disks_of_a_btrfs_are_its_members(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with image.open("wb+") as file:
        file.truncate(128 * MIB)
        subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, timeout=60, capture_output=True)
        fd, path = attach_loop(file.fileno())
    point = tmp_path / "mounted"
    point.mkdir()
    script = (
        "import sys\nfrom invigilator.sandbox import disks\n"
        "found, whole = disks.below([sys.argv[1], '/dev/shm'])\nprint(whole, *(one.name for one in found))"
    )
    inner = f"mount -t btrfs {path} '{point}' && exec \"$@\""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", inner, "sh", sys.executable, "-c", script, point],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(fd)
    assert done.stdout == f"True {path}\n", done.stderr
