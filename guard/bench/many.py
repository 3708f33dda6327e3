"""What many sandboxes with their detectors cost while they live, and what many short ones leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from invigilator.detectors.engine import Engine
from invigilator.ebpf.layout import STREAM
from invigilator.ebpf.loader import library
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.bench import place
from invigilator.guard.bench.flow import resident_bytes
from invigilator.guard.bench.lives import by_workers, cpu_s
from invigilator.guard.bench.measure import Section
from invigilator.sandbox.process import ProcessBackend

WORKERS = 2
IDLE_S = 10.0
KIB = 1024
MAPS = {"scopes": 8, "streams": STREAM.itemsize, "watched": STREAM.itemsize}
"""The sensor's maps by sandbox, with the bytes of a key (`ebpf/src/maps.h`)."""


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds, or has the kernel hold for it. `loops`: loop devices over files below the
    bench's folder; `map_entries`: of the sensor's maps that have some for each sandbox."""

    memory: int
    descriptors: int
    threads: int
    mounts: int
    cgroups: int
    loops: int
    processes: int
    map_entries: int

    @classmethod
    def now(cls, home: Path, backend: ProcessBackend, sensor: Sensor) -> Held:
        """As it is."""
        return cls(
            resident_bytes(),
            _count(Path("/proc/self/fd")),
            _count(Path("/proc/self/task")),
            Path("/proc/self/mountinfo").read_bytes().count(b"\n"),
            sum(len(folders) for top in backend.cgroup_folders() for _, folders, _ in os.walk(top)),
            sum(_lies_below(file, home) for file in Path("/sys/block").glob("loop*/loop/backing_file")),
            _children(backend.launcher.pid),
            sum(_entries(sensor, name, size) for name, size in MAPS.items()),
        )


def many(live: int = 2_000, short: int = 5_000) -> Section:
    """Memory, descriptors and idle CPU of many registered live sandboxes; growth over many short ones."""
    section = Section("many sandboxes")
    with tempfile.TemporaryDirectory() as folder, descriptors(), Sensor.open() as sensor:
        home = Path(folder) / "home"
        backend = ProcessBackend(home, stock=8)
        try:
            with place.drained(sensor):
                by_workers(backend, sensor, 20, WORKERS)
                _alive(section, home, backend, sensor, live)
                _gone(section, home, backend, sensor, short)
        finally:
            backend.close()
    return section


def _alive(section: Section, home: Path, backend: ProcessBackend, sensor: Sensor, live: int) -> None:
    before, free = Held.now(home, backend, sensor), _available_bytes()
    with contextlib.ExitStack() as boxes:
        took, engines = [], []
        for _ in range(live):
            began = time.perf_counter()
            box = boxes.enter_context(place.started(backend, sensor))
            engines.append(Engine(box.spec.policy, box.spec.sandbox_id, 0))
            took.append((time.perf_counter() - began) * 1e3)
        full, left = Held.now(home, backend, sensor), _available_bytes()
        cpu = cpu_s(), _cpu_of_children(backend.launcher.pid)
        time.sleep(IDLE_S)
        idle = (cpu_s() - cpu[0], _cpu_of_children(backend.launcher.pid) - cpu[1])
        began = time.perf_counter()
    removal = (time.perf_counter() - began) / live * 1e3
    name = f"{live:,} live"
    section.add(f"{name}: the agent's memory a sandbox", "KiB", [(full.memory - before.memory) / live / KIB])
    section.add(f"{name}: the machine's memory a sandbox", "KiB", [(free - left) / live / KIB])
    section.add(
        f"{name}: the agent's descriptors a sandbox", "", [(full.descriptors - before.descriptors) / live]
    )
    section.add(f"{name}: idle CPU of the agent, of one core", "%", [idle[0] / IDLE_S * 100])
    section.add(f"{name}: idle CPU of what runs in them, of one core", "%", [idle[1] / IDLE_S * 100])
    section.add(f"{name}: making one, the first tenth", "ms", took[: live // 10])
    section.add(f"{name}: making one, the last tenth", "ms", took[-(live // 10) :])
    section.add(f"{name}: removing one", "ms", [removal])


def _gone(section: Section, home: Path, backend: ProcessBackend, sensor: Sensor, short: int) -> None:
    by_workers(backend, sensor, short // 5, WORKERS)
    early = _settled(home, backend, sensor)
    by_workers(backend, sensor, short - short // 5, WORKERS)
    late = _settled(home, backend, sensor)
    name, share = f"{short:,} short ones", late.memory / early.memory
    note = f"{late.memory >> 20} MiB"
    section.add(f"{name}: memory, end ÷ after the first fifth", "×", [share], at_most=1.05, note=note)
    for one in fields(Held)[1:]:
        grown = getattr(late, one.name) - getattr(early, one.name)
        section.add(f"{name}: {one.name} more than after the first fifth", "", [grown], at_most=0)


def _settled(home: Path, backend: ProcessBackend, sensor: Sensor) -> Held:
    """Once what is dropped in the background is gone."""
    time.sleep(2.0)
    return Held.now(home, backend, sensor)


@contextlib.contextmanager
def descriptors() -> Iterator[None]:
    """As many as the agent may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _lies_below(file: Path, home: Path) -> bool:
    with contextlib.suppress(OSError):
        return file.read_text().startswith(str(home))
    return False


def _entries(sensor: Sensor, name: str, key_bytes: int) -> int:
    lib, descriptor = library(), sensor._kernel.map_fd(name)
    count, key = 0, ctypes.create_string_buffer(key_bytes)
    found = lib.bpf_map_get_next_key(descriptor, None, key)
    while found == 0:
        count += 1
        found = lib.bpf_map_get_next_key(descriptor, key, key)
    return count


def _available_bytes() -> int:
    """Of the machine's memory, what could still be had (proc(5), MemAvailable)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * KIB
    raise RuntimeError("no MemAvailable in /proc/meminfo")


def _child_pids(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _children(pid: int) -> int:
    return len(_child_pids(pid))


def _cpu_of_children(pid: int) -> float:
    ticks = 0
    for child in _child_pids(pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")
