"""A sensor of the session's own, and boxes: registered cgroups in which a test runs small Python programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from invigilator.ebpf.events import Actor, EventBatch, Kind, Phase
from invigilator.ebpf.sensor import Sensor, SensorUnavailable

PROGRAMS = Path(__file__).parent / "programs"
CHILD_TIMEOUT_S = 60
SETTLE_TIMEOUT_S = 30.0

PRELUDE = """
import os, sys, ctypes, errno, socket, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    "A raw system call: its result, or -errno."
    ready = [ctypes.c_char_p(a) if isinstance(a, bytes) else a if isinstance(a, ctypes._SimpleCData)
             else ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *ready)
    return result if result >= 0 else -ctypes.get_errno()
"""


@dataclass
class Told:
    """What a child printed, its pid, and the events of its box since the last run."""

    batch: EventBatch
    output: str
    pid: int
    status: int

    def of(self, kind: Kind, **fields: Any) -> list[dict[str, Any]]:
        """Events of a kind whose fields are as given; string fields as bytes."""
        found = []
        for row in np.flatnonzero(self.batch.records["kind"] == int(kind)).tolist():
            event = self.event(row)
            if all(event[name] == value for name, value in fields.items()):
                found.append(event)
        return found

    def one(self, kind: Kind, **fields: Any) -> dict[str, Any]:
        """The single event of a kind whose fields are as given."""
        found = self.of(kind, **fields)
        assert len(found) == 1, (len(found), found or self.of(kind)[-5:])
        return found[0]

    def event(self, row: int) -> dict[str, Any]:
        record = self.batch.records[row]
        event: dict[str, Any] = {}
        for name in self.batch.records.dtype.names or ():
            if name in ("path", "path2", "text", "exe"):
                event[name] = self.batch.text(name, row)
            elif name == "address":
                event[name] = record[name].tobytes()
            elif name != "reserved":
                event[name] = int(record[name])
        return event


@dataclass
class Box:
    """A registered cgroup."""

    sensor: Sensor
    folder: Path
    slot: int
    held: list[EventBatch] = field(default_factory=list)

    def run(
        self,
        program: str,
        *arguments: str | bytes | Path,
        check: bool = True,
        prepare: Callable[[], None] | None = None,
        **options: Any,
    ) -> Told:
        """Run a Python program in the box; its lines see `call`, `os`, `socket`, … and `sys.argv[1:]`."""
        command = [sys.executable, "-I", "-S", "-c", PRELUDE + program, *arguments]
        return self.execute(command, check=check, **options)

    def execute(self, command: list[Any], *, check: bool = True, **options: Any) -> Told:
        """Run a command in the box. A child of the test's enters the cgroup and then executes it."""
        enter = (self.folder / "cgroup.procs").as_posix()
        child = subprocess.Popen(
            ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', enter, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            **options,
        )
        try:
            output, errors = child.communicate(timeout=CHILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise
        if check:
            assert child.returncode == 0, errors.decode(errors="replace")
        text = output.decode(errors="surrogateescape")
        return Told(self.events(), text, child.pid, child.returncode)

    def events(self) -> EventBatch:
        """Every event made so far and not yet seen."""
        return self.sensor_events()

    def sensor_events(self) -> EventBatch:
        parts = []
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            batch = self.sensor.drain(0.01)
            parts.append(batch.select(batch.records["slot"] == self.slot))
            if self.sensor.drained_to(self.slot) >= self.sensor.loss(self.slot).produced:
                return EventBatch.concat(parts)
            assert time.monotonic() < deadline, self.sensor.loss(self.slot)


def _unified() -> Path:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, sort, *_ = line.split()
        if sort == "cgroup2":
            return Path(where)
    pytest.skip("no cgroup v2 hierarchy is mounted")


@pytest.fixture(scope="session")
def sensor() -> Iterator[Sensor]:
    if os.geteuid() != 0:
        pytest.skip("kernel tests need root")
    try:
        opened = Sensor.open(bulk_bytes=8 << 20, precious_bytes=4 << 20, string_bytes=4 << 20)
    except SensorUnavailable as why:
        pytest.skip(f"no sensor here: {why}")
    with opened:
        yield opened


@pytest.fixture(scope="session")
def parent_cgroup() -> Iterator[Path]:
    """A v2 cgroup of the session's own, below which boxes are made."""
    folder = _unified() / f"invigilator-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    remove_cgroup(folder)


def remove_cgroup(folder: Path) -> None:
    """End what is in a cgroup and below, and remove it."""
    if not folder.exists():
        return
    (folder / "cgroup.kill").write_text("1")
    for _ in range(200):
        if "populated 0" in (folder / "cgroup.events").read_text():
            break
        time.sleep(0.01)
    for below in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        below.rmdir()
    folder.rmdir()


@pytest.fixture
def make_box(sensor: Sensor, parent_cgroup: Path) -> Iterator[Callable[..., Box]]:
    """Boxes: `make_box(phase=Phase.AGENT, step=0, actor=Actor.AGENT, arm=True)`."""
    made: list[Box] = []

    def make(phase: Phase = Phase.AGENT, step: int = 0, actor: Actor = Actor.AGENT, arm: bool = True) -> Box:
        folder = parent_cgroup / uuid.uuid4().hex[:12]
        folder.mkdir()
        slot = sensor.register(uuid.uuid4(), {folder.stat().st_ino: phase})
        sensor.set_step(slot, step, actor)
        if arm:
            sensor.arm(slot)
        made.append(Box(sensor, folder, slot))
        return made[-1]

    yield make
    for box in made:
        remove_cgroup(box.folder)
        sensor.unregister(box.slot)
    sensor.drain()


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    return make_box()


@pytest.fixture
def one_by_one(box: Box) -> Iterator[None]:
    """As on a kernel whose table of names was not found: a folder's names are searched one by one."""
    address = box.sensor._kernel.variable(".bss", "name_table", np.uint64)
    before = int(address[0])
    address[0] = 0
    yield
    address[0] = before


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles one of `programs/*.c` once a session; skips where the compiler cannot."""
    folder = tmp_path_factory.mktemp("programs")
    made: dict[tuple[str, ...], Path] = {}

    def compile_(name: str, *flags: str) -> Path:
        key = (name, *flags)
        if key not in made:
            target = folder / f"{name}-{len(made)}"
            source = PROGRAMS / f"{name}.c"
            done = subprocess.run(
                ["gcc", "-O1", "-pthread", *flags, "-o", str(target), str(source)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"cannot compile {name} {flags}: {done.stderr.strip()[:300]}")
            made[key] = target
        return made[key]

    return compile_
