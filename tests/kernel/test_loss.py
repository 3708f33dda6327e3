"""Order, loss, and who pays for a flood."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from invigilator.ebpf.events import EVENT, EventBatch, EventClass, Flag, Kind, Phase, Tier
from invigilator.ebpf.sensor import Sensor

from .conftest import PRELUDE, Box


def start(box: Box, *command: object) -> subprocess.Popen[bytes]:
    enter = (box.folder / "cgroup.procs").as_posix()
    words = ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', enter, *map(str, command)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)


def drain_until(sensor: Sensor, done: Callable[[], bool], slots: list[int]) -> EventBatch:
    parts = []
    deadline = time.monotonic() + 60
    while True:
        over = done()
        parts.append(sensor.drain(0.02))
        if over and all(sensor.drained_to(s) >= sensor.loss(s).produced for s in slots):
            return EventBatch.concat(parts)
        assert time.monotonic() < deadline


def assert_accounted(sensor: Sensor, batch: EventBatch, slot: int) -> None:
    """produced = stored + lost; numbers ascend, none twice."""
    seqs = batch.records["seq"][batch.records["slot"] == slot]
    loss = sensor.loss(slot)
    assert loss.produced == len(seqs) + loss.lost
    assert (np.diff(seqs.astype(np.int64)) > 0).all()
    assert loss.unattributed == 0
    assert "vanished" not in {reason for _, reason in loss.lost_by}


@dataclass
class Tally:
    """What came of one sandbox, counted as it comes: a flood's events together are gigabytes."""

    slot: int
    events: int = 0
    opens: int = 0
    last: int = 0

    def add(self, batch: EventBatch) -> None:
        mine = batch.records[batch.records["slot"] == self.slot]
        if not len(mine):
            return
        seqs = mine["seq"].astype(np.int64)
        assert self.last < seqs[0] and (np.diff(seqs) > 0).all()
        self.last = int(seqs[-1])
        self.events += len(mine)
        opened = (mine["kind"] == int(Kind.OPEN)) & (mine["nr"] == 257) & (mine["result"] >= 0)
        self.opens += int(opened.sum())


@pytest.mark.parametrize("calls", [8000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_sixteen_processes_flood_while_the_reader_reads(
    box: Box, program: Callable[..., Path], tmp_path: Path, calls: int
) -> None:
    """C11: produced = stored + lost."""
    (tmp_path / "f").write_text("")
    tally = Tally(box.slot)
    child = start(box, program("flood"), "open", 16, calls, tmp_path / "f")
    deadline = time.monotonic() + 60 + calls / 1000
    try:
        while child.poll() is None or box.sensor.drained_to(box.slot) < box.sensor.loss(box.slot).produced:
            tally.add(box.sensor.drain(0.02))
            assert time.monotonic() < deadline
    finally:
        child.kill()
        child.wait()
    loss = box.sensor.loss(box.slot)
    assert loss.produced == tally.events + loss.lost
    assert (loss.unattributed, "vanished" in {reason for _, reason in loss.lost_by}) == (0, False)
    assert 16 * calls <= tally.opens + loss.lost


def test_flood_with_no_reader_is_loss_by_own_rate_and_partial(
    box: Box, make_box: Callable[..., Box], program: Callable[..., Path], tmp_path: Path
) -> None:
    """C11, C18: the flooding kind loses; other kinds and other sandboxes lose nothing."""
    (tmp_path / "f").write_text("")
    other = make_box()
    size = 8 << 20
    calls = 2 * size // 200 // 4
    flood = start(box, program("flood"), "open", 4, calls, tmp_path / "f")
    assert flood.wait(timeout=60) == 0
    quiet = start(other, "/bin/cat", tmp_path / "f")
    assert quiet.wait(timeout=10) == 0
    batch = drain_until(box.sensor, lambda: True, [box.slot, other.slot])
    loss = box.sensor.loss(box.slot)
    assert set(loss.lost_by) == {("file", "own_rate")}
    assert loss.lost > calls
    assert_accounted(box.sensor, batch, box.slot)
    assert box.sensor.loss(other.slot).lost == 0
    assert_accounted(box.sensor, batch, other.slot)
    kinds = batch.records["kind"][batch.records["slot"] == box.slot]
    assert (kinds == int(Kind.EXIT)).sum() == 5
    assert (kinds == int(Kind.FORK)).sum() == 4


@pytest.mark.parametrize("what", ["connect", "rename", "strings"])
def test_flood_of_one_precious_kind_spares_the_others(
    box: Box, make_box: Callable[..., Box], program: Callable[..., Path], what: str
) -> None:
    """C18: connects, renames and ever new names."""
    other = make_box()
    flood = start(box, program("flood"), what, 4, 12000, "-")
    assert flood.wait(timeout=60) == 0
    quiet = start(other, "/bin/cat", "/etc/hostname")
    assert quiet.wait(timeout=10) == 0
    batch = drain_until(box.sensor, lambda: True, [box.slot, other.slot])
    assert_accounted(box.sensor, batch, box.slot)
    loss = box.sensor.loss(box.slot)
    assert loss.lost or loss.strings_lost
    assert {reason for _, reason in loss.lost_by} <= {"own_rate", "string"}
    spared = box.sensor.loss(other.slot)
    assert (spared.lost, spared.strings_lost) == (0, 0)
    mine = batch.records[batch.records["slot"] == other.slot]
    assert not (mine["flags"] & int(Flag.STRING_LOST)).any()
    kinds = batch.records["kind"][batch.records["slot"] == box.slot]
    assert (kinds == int(Kind.EXIT)).sum() == 5


SIX_KINDS = """
for number in range(int(sys.argv[1])):
    call(82, b"/nowhere/a", b"/nowhere/b"), call(86, b"/nowhere/a", b"/nowhere/b")
    call(87, b"/nowhere/a"), call(83, b"/nowhere/a", 0o755)
    call(88, b"a", b"/nowhere/a"), call(90, b"/nowhere/a", 0o644)
"""
"""Rounds of rename, link, unlink, mkdir, symlink and chmod: each an event of a kind of its own."""
PRECIOUS_EVENTS = (4 << 20) // 200


def run_unread(box: Box, program: str, *arguments: object) -> None:
    """Run a Python program in the box while nobody reads the rings."""
    words = (sys.executable, "-I", "-S", "-c", PRELUDE + program, *arguments)
    assert start(box, *words).wait(timeout=60) == 0


def test_flood_of_six_kinds_at_once_is_loss_by_own_rate(box: Box) -> None:
    """None of its queues holds more than a seventh of the ring."""
    run_unread(box, SIX_KINDS, PRECIOUS_EVENTS // 4)
    batch = drain_until(box.sensor, lambda: True, [box.slot])
    loss = box.sensor.loss(box.slot)
    assert set(loss.lost_by) == {("file", "own_rate")}
    assert loss.lost > PRECIOUS_EVENTS // 4
    assert_accounted(box.sensor, batch, box.slot)


def test_burst_beside_a_flood_is_not_lost_by_its_own_rate(box: Box, make_box: Callable[..., Box]) -> None:
    """What the ring would have taken from it alone was lost because others fill the ring."""
    other = make_box()
    run_unread(box, SIX_KINDS, PRECIOUS_EVENTS // 4)
    run_unread(other, SIX_KINDS, PRECIOUS_EVENTS // 6 // 2)
    drain_until(box.sensor, lambda: True, [box.slot, other.slot])
    assert set(other.sensor.loss(other.slot).lost_by) == {("file", "ring_full")}
    assert set(box.sensor.loss(box.slot).lost_by) == {("file", "own_rate")}


def test_two_floods_do_not_excuse_each_other(
    box: Box, make_box: Callable[..., Box], program: Callable[..., Path]
) -> None:
    other = make_box()
    for one in (box, other):
        flood = start(one, program("flood"), "rename", 2, PRECIOUS_EVENTS, "-")
        assert flood.wait(timeout=60) == 0
    drain_until(box.sensor, lambda: True, [box.slot, other.slot])
    for one in (box, other):
        assert one.sensor.loss(one.slot).lost_by[("file", "own_rate")] > PRECIOUS_EVENTS // 2


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_short_lived_sandboxes_each_keep_their_first_exec(
    sensor: Sensor, parent_cgroup: Path, count: int
) -> None:
    """C12: sandboxes that live a moment: each first exec in the right one; slots used again; memory flat."""
    kept, resident = [], 0
    for number in range(count):
        folder = parent_cgroup / f"short-{number}"
        folder.mkdir()
        slot = sensor.register(uuid.uuid4(), {folder.stat().st_ino: Phase.AGENT})
        sensor.arm(slot)
        start(Box(sensor, folder, slot), "/bin/true", number).wait(timeout=10)
        batch = drain_until(sensor, lambda: True, [slot])
        mine = batch.select(batch.records["slot"] == slot)
        assert mine.text("text", 0) == b"/bin/true\0%d" % number
        assert mine.records["kind"][-1] == int(Kind.EXIT)
        sensor.unregister(slot)
        folder.rmdir()
        kept.append(slot)
        resident = resident or (number == 50 and resident_bytes())
    assert len(set(kept)) == count
    assert resident_bytes() - resident < 20_000 * count  # what a sandbox leaves: its few strings


def test_a_registration_costs_the_same_however_many_there_are(
    sensor: Sensor, lines_run: Callable[[Callable[[], object]], int]
) -> None:
    slots: list[int] = []

    def register() -> None:
        first = 10**12 + 3 * len(slots)
        cgroups = {first + at: phase for at, phase in enumerate((Phase.SETUP, Phase.AGENT, Phase.VERIFY))}
        slots.append(sensor.register(uuid.uuid4(), cgroups))

    costs = [lines_run(register) for _ in range(500)]
    for slot in slots:
        sensor.unregister(slot)
    assert sum(costs[-10:]) < 2 * sum(costs[10:20])


def test_a_cgroup_cannot_be_registered_twice(sensor: Sensor) -> None:
    slot = sensor.register(uuid.uuid4(), {10**13: Phase.AGENT})
    with pytest.raises(OSError, match="watched already"):
        sensor.register(uuid.uuid4(), {10**13: Phase.AGENT})
    sensor.unregister(slot)
    sensor.unregister(sensor.register(uuid.uuid4(), {10**13: Phase.AGENT}))


def test_facts_of_the_agent_take_their_number_from_the_same_counter(box: Box) -> None:
    box.sensor.emit(box.slot, Kind.PHASE, a0=1, phase=int(Phase.AGENT))
    box.execute(["/bin/true"])
    box.sensor.emit(
        box.slot, Kind.STEP, text=b"call-7", path=b"/x\xff", step=3, a0=0, result=-2, phase=int(Phase.AGENT)
    )
    batch = box.events()
    last = len(batch) - 1
    event = batch.records[last]
    assert batch.text("text", last) == b"call-7"
    assert batch.text("path", last) == b"/x\xff"
    assert (event["kind"], event["step"], event["result"]) == (int(Kind.STEP), 3, -2)
    assert (event["class"], event["tiers"]) == (int(EventClass.SENSOR), int(Tier.AGENT))
    assert event["seq"] == box.sensor.loss(box.slot).produced
    assert abs(int(event["time_ns"]) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) < 5e9


def test_ten_thousand_facts_of_the_agent_lose_none(box: Box) -> None:
    for number in range(10000):
        box.sensor.emit(box.slot, Kind.DIFF, path=b"/p", a1=number)
    batch = box.events()
    assert (batch.records["a1"] == np.arange(10000)).all()
    assert box.sensor.loss(box.slot).lost == 0


def test_strings_are_sent_again_after_an_epoch(box: Box) -> None:
    """Old strings are forgotten; what is still in use comes again, the running program's own name too."""
    told: list[EventBatch] = []
    reader, writer = os.pipe()
    child = threading.Thread(
        target=lambda: told.append(
            box.run(
                "for _ in range(2):\n    call(2, b'/nowhere/same', 0, 0); os.read(int(sys.argv[1]), 1)",
                str(reader),
                pass_fds=[reader],
            ).batch
        )
    )
    child.start()
    time.sleep(0.5)
    box.sensor.renew_strings()
    os.write(writer, b"ab")
    child.join()
    os.close(reader)
    os.close(writer)
    batch = told[0]
    rows = np.flatnonzero(batch.match("path2", lambda p: p == b"/nowhere/same"))
    assert len(rows) == 2
    assert {batch.text("exe", int(r)) for r in rows} == {os.fsencode(os.path.realpath("/proc/self/exe"))}
    assert {batch.text("path", int(r)) for r in rows} == {b"/nowhere/same"}


def test_events_are_in_kernel_memory_as_in_the_dtype() -> None:
    assert EVENT.itemsize == 192


def test_every_kind_has_a_counter_of_its_own_in_the_kernel(box: Box) -> None:
    sensor, slot = box.sensor, box.slot
    sent, seen = (sensor._slots[name][slot] for name in ("sent", "seen"))
    assert max(Kind) < len(sent)
    before = sent.copy()
    for kind in Kind:
        sensor.emit(slot, kind)
    assert {number for number, more in enumerate(sent - before) if more} == {int(kind) for kind in Kind}
    while len(sensor.drain(0.5)):
        pass
    assert (sent == seen).all()
