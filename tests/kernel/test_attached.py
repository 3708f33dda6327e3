"""Cgroups that others made and filled: who was there before, the phase that is declared, the record's end."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from invigilator.ebpf.events import Actor, Kind, Phase
from invigilator.ebpf.sensor import Sensor

from .conftest import CHILD_TIMEOUT_S, Box, remove_cgroup

INHABITANT = """
import os, sys, threading
asked, told = threading.Event(), threading.Event()
def second():
    while True:
        asked.wait(), asked.clear()
        os.close(os.open(path, os.O_RDONLY)), told.set()
threading.Thread(target=second, daemon=True).start()
print("here", flush=True)
for line in sys.stdin:
    what, path = line.split()
    if what == "open":
        os.close(os.open(path, os.O_RDONLY))
    elif what == "thread":
        asked.set(), told.wait(), told.clear()
    elif what == "fork":
        child = os.fork()
        if not child:
            os.close(os.open(path, os.O_RDONLY)), os._exit(0)
        os.waitpid(child, 0)
    elif what == "exec":
        os.spawnv(os.P_WAIT, path, [path])
    print("done", flush=True)
"""


class Inhabitant:
    """A process that was in its cgroup before anybody watched, and does what it is told."""

    def __init__(self, folder: Path) -> None:
        enter = ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', folder / "cgroup.procs"]
        self.process = subprocess.Popen(
            [*enter, sys.executable, "-I", "-S", "-c", INHABITANT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._hear("here")

    def do(self, what: str, path: str | Path = "/etc/hostname") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {path}\n")
        self.process.stdin.flush()
        self._hear("done")

    def threads(self) -> list[int]:
        return [int(one.name) for one in Path(f"/proc/{self.process.pid}/task").iterdir()]

    def end(self) -> None:
        self.process.kill()
        self.process.wait(CHILD_TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _hear(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"


@pytest.fixture
def folder(parent_cgroup: Path) -> Iterator[Path]:
    made = parent_cgroup / uuid.uuid4().hex[:12]
    made.mkdir()
    yield made
    remove_cgroup(made)


@pytest.fixture
def attach(sensor: Sensor) -> Iterator[Callable[[Path], Box]]:
    slots: list[int] = []

    def watch(folder: Path) -> Box:
        slots.append(sensor.register(uuid.uuid4(), {folder.stat().st_ino: Phase.UNKNOWN}))
        sensor.arm(slots[-1])
        return Box(sensor, folder, slots[-1])

    yield watch
    for slot in slots:
        sensor.unregister(slot)
    sensor.drain()


@pytest.fixture
def inhabitant(folder: Path) -> Iterator[Inhabitant]:
    made = Inhabitant(folder)
    yield made
    made.end()


def opens(box: Box) -> list[dict[str, Any]]:
    """What was opened of /etc/hostname since the last look."""
    batch = box.events()
    rows = [row for row in range(len(batch)) if batch.text("path", row) == b"/etc/hostname"]
    return [
        {name: int(batch.records[row][name]) for name in ("pid", "tid", "phase", "origin_phase", "actor")}
        | {"exe": batch.text("exe", row)}
        for row in rows
    ]


def test_who_was_there_before_is_followed_once_adopted_with_all_threads(
    folder: Path, inhabitant: Inhabitant, attach: Callable[[Path], Box]
) -> None:
    box = attach(folder)
    inhabitant.do("open")
    assert opens(box) == []
    threads = inhabitant.threads()
    assert len(threads) == 2
    assert box.sensor.adopt(box.slot) == 2
    assert box.sensor.adopt(box.slot) == 0
    inhabitant.do("open"), inhabitant.do("thread")
    first, second = opens(box)
    assert first["tid"] == first["pid"] == inhabitant.process.pid
    assert second["pid"] == first["pid"] and second["tid"] in threads and second["tid"] != first["tid"]
    assert first["exe"] == str(Path(sys.executable).resolve()).encode()
    assert (first["phase"], first["origin_phase"], first["actor"]) == (Phase.UNKNOWN, Phase.UNKNOWN, 0)


def test_the_first_phase_that_is_declared_is_the_one_in_which_who_is_there_began(
    folder: Path, inhabitant: Inhabitant, attach: Callable[[Path], Box]
) -> None:
    box = attach(folder)
    box.sensor.adopt(box.slot)
    box.sensor.declare(box.slot, Phase.AGENT)
    inhabitant.do("open"), inhabitant.do("fork")
    own, child = opens(box)
    for one in (own, child):
        assert (one["phase"], one["origin_phase"]) == (Phase.AGENT, Phase.AGENT)
    box.sensor.declare(box.slot, Phase.VERIFY)
    inhabitant.do("open"), inhabitant.do("fork")
    for one in opens(box):
        assert (one["phase"], one["origin_phase"]) == (Phase.VERIFY, Phase.AGENT)
    box.sensor.set_step(box.slot, 3, Actor.PLATFORM)
    told = box.run("os.close(os.open('/etc/hostname', 0))")
    entered = told.of(Kind.EXEC)[0]
    assert (entered["phase"], entered["origin_phase"]) == (Phase.VERIFY, Phase.VERIFY)
    assert (entered["step"], entered["actor"]) == (3, Actor.PLATFORM)


def test_who_was_there_before_verify_was_the_first_phase_is_of_no_known_one(
    folder: Path, inhabitant: Inhabitant, attach: Callable[[Path], Box]
) -> None:
    box = attach(folder)
    box.sensor.declare(box.slot, Phase.VERIFY)
    box.sensor.adopt(box.slot)
    inhabitant.do("open"), inhabitant.do("fork")
    both = opens(box)
    assert len(both) == 2
    for one in both:
        assert (one["phase"], one["origin_phase"]) == (Phase.VERIFY, Phase.UNKNOWN)


def test_cgroups_below_are_included_and_another_s_are_refused(
    folder: Path, attach: Callable[[Path], Box], make_box: Callable[..., Box]
) -> None:
    before = folder / "before"
    before.mkdir()
    box = attach(folder)
    after = folder / "after"
    after.mkdir()
    cgroups = {one.stat().st_ino: Phase.UNKNOWN for one in (before, after, folder)}
    box.sensor.include(box.slot, cgroups)
    for below in (before, after):
        inside = Box(box.sensor, below, box.slot)
        assert inside.execute(["/bin/true"]).of(Kind.EXEC)
    other = make_box()
    taken = {other.folder.stat().st_ino: Phase.UNKNOWN}
    with pytest.raises(OSError, match="watched already"):
        box.sensor.include(box.slot, taken)
    with pytest.raises(OSError, match="watched already"):
        box.sensor.register(uuid.uuid4(), taken)
    assert other.execute(["/bin/true"]).one(Kind.EXEC)["phase"] == Phase.AGENT


def test_what_happens_before_the_mounts_are_known_is_handed_out_after_with_its_paths(
    folder: Path, sensor: Sensor
) -> None:
    slot = sensor.register(uuid.uuid4(), {folder.stat().st_ino: Phase.AGENT})
    try:
        sensor.hold(slot)
        sensor.arm(slot)
        enter = ["/bin/sh", "-c", 'echo $$ >"$0" && exec /bin/true', folder / "cgroup.procs"]
        subprocess.run(enter, check=True, timeout=CHILD_TIMEOUT_S)
        sensor.emit(slot, Kind.STEP, text=b"own")
        assert sensor.loss(slot).produced > 2
        assert not (sensor.drain(0.05).records["slot"] == slot).any()
        assert sensor.drained_to(slot) == 0
        program = Path("/bin/true").resolve()
        sensor.set_mounts(slot, [(_kernel_dev(program), b"/", b"/moved")])
        batch = Box(sensor, folder, slot).events()
        assert batch.text("path", 0) == b"/moved" + bytes(program)
        assert batch.text("text", len(batch) - 1) == b"own"
    finally:
        sensor.unregister(slot)


def _kernel_dev(path: Path) -> int:
    dev = path.stat().st_dev
    return os.major(dev) << 20 | os.minor(dev)


def test_nothing_is_recorded_of_who_lives_on_after_the_halt(
    folder: Path, inhabitant: Inhabitant, attach: Callable[[Path], Box]
) -> None:
    box = attach(folder)
    box.sensor.adopt(box.slot)
    inhabitant.do("open")
    box.sensor.halt(box.slot)
    inhabitant.do("open"), inhabitant.do("exec", "/bin/true")
    assert len(opens(box)) == 1
    assert box.sensor.loss(box.slot).produced == box.sensor.drained_to(box.slot)


def test_who_was_followed_by_a_watch_that_ended_is_followed_by_the_next(
    folder: Path, inhabitant: Inhabitant, sensor: Sensor, attach: Callable[[Path], Box]
) -> None:
    first = sensor.register(uuid.uuid4(), {folder.stat().st_ino: Phase.AGENT})
    sensor.arm(first)
    assert sensor.adopt(first) == 2
    sensor.unregister(first)
    box = attach(folder)
    assert box.sensor.adopt(box.slot) == 2
    inhabitant.do("open")
    assert [one["phase"] for one in opens(box)] == [Phase.UNKNOWN]
