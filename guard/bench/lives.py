"""How fast sandboxes come and go, and what many of them cost."""

from __future__ import annotations

import resource
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from pathlib import Path

from invigilator.ebpf.events import Phase
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.bench import place
from invigilator.guard.bench.flow import resident_bytes
from invigilator.guard.bench.measure import Section
from invigilator.sandbox.base import SandboxSpec
from invigilator.sandbox.process import ProcessBackend, ProcessSandbox

WORKERS = (1, 2, 4)
GROWING = 2
"""Workers of the run that looks for growth."""


def creation(count: int = 200) -> Section:
    """Create → first instruction → gone: one after the other, by two at once, and where the time goes."""
    section = Section("a sandbox's life")
    steps: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, Sensor.open() as sensor, place.drained(sensor):
        backend = ProcessBackend(Path(folder) / "home", stock=8)
        try:
            _life(backend, sensor)
            whole = []
            for _ in range(count):
                began = time.perf_counter()
                for name, seconds in _life(backend, sensor).items():
                    steps[name].append(seconds * 1e3)
                whole.append((time.perf_counter() - began) * 1e3)
            together = {workers: _rate(backend, sensor, count, workers) for workers in WORKERS}
        finally:
            backend.close()
    section.add("create, run `true`, remove", "ms", whole)
    for workers, (rate, cpu_ms) in together.items():
        section.add(f"lives a second, by {workers}", "1/s", [rate], at_least=100)
        section.add(f"this process's CPU a life, by {workers}", "ms", [cpu_ms])
    for name, values in sorted(steps.items(), key=lambda item: -sum(item[1])):
        section.add(f"step: {name}", "ms", values)
    return section


def registrations(count: int = 20_000) -> Section:
    """Sandboxes registered and unregistered with the sensor a second."""
    section = Section("registrations")
    with Sensor.open() as sensor:
        began = time.perf_counter()
        for number in range(count):
            first = (1 << 40) + number * 3
            cgroups = {first: Phase.SETUP, first + 1: Phase.AGENT, first + 2: Phase.VERIFY}
            sensor.unregister(sensor.register(uuid.uuid4(), cgroups))
        took = time.perf_counter() - began
    section.add("registrations a second", "1/s", [count / took], at_least=5_000)
    return section


def many(live: int = 2_000, short: int = 5_000) -> Section:
    """Memory and idle CPU with many registered live sandboxes, and growth over many short ones."""
    section = Section("many sandboxes")
    with tempfile.TemporaryDirectory() as folder, Sensor.open() as sensor:
        backend = ProcessBackend(Path(folder) / "home", stock=4)
        boxes: list[ProcessSandbox] = []
        slots: list[int] = []
        try:
            before = resident_bytes()
            for _ in range(live):
                box = backend.prepare(SandboxSpec(uuid.uuid4(), place.policy()))
                boxes.append(box)
                cgroups = {number: place.PHASES[name] for name, number in box.cgroups().items()}
                slots.append(sensor.register(box.spec.sandbox_id, cgroups))
                box.start()
                sensor.set_mounts(slots[-1], [(m.dev, m.fs_root, m.mount_point) for m in box.mounts()])
                sensor.arm(slots[-1])
            each = (resident_bytes() - before) / live
            with place.drained(sensor):
                cpu = _cpu_s()
                time.sleep(10)
                idle = (_cpu_s() - cpu) / 10
        finally:
            for box, slot in zip(boxes, slots, strict=False):
                box.remove()
                sensor.unregister(slot)
            backend.close()
    section.add(f"{live} live: memory of the agent's process a sandbox", "KiB", [each / 1024])
    section.add(f"{live} live: idle CPU of one core", "%", [idle * 100])
    section.figures += _growth(short).figures
    return section


def _growth(short: int) -> Section:
    section = Section("growth")
    with tempfile.TemporaryDirectory() as folder, Sensor.open() as sensor, place.drained(sensor):
        backend = ProcessBackend(Path(folder) / "home", stock=8)
        try:
            _by_workers(backend, sensor, short // 5, GROWING)
            early = resident_bytes()
            _by_workers(backend, sensor, short - short // 5, GROWING)
            late = resident_bytes()
        finally:
            backend.close()
    section.add(
        f"{short} short-lived: resident memory, end ÷ after the first fifth",
        "×",
        [late / early],
        at_most=1.05,
        note=f"{late >> 20} MiB",
    )
    return section


def _life(backend: ProcessBackend, sensor: Sensor) -> dict[str, float]:
    with place.started(backend, sensor) as box:
        place.output_of(box, ["/usr/bin/true"])
    assert isinstance(box, ProcessSandbox)
    return dict(box.timings)


def _rate(backend: ProcessBackend, sensor: Sensor, count: int, workers: int) -> tuple[float, float]:
    """Lives a second, and milliseconds of this process's CPU a life."""
    began, before = time.perf_counter(), _cpu_s()
    made = _by_workers(backend, sensor, count, workers)
    return made / (time.perf_counter() - began), (_cpu_s() - before) / made * 1e3


def _by_workers(backend: ProcessBackend, sensor: Sensor, count: int, workers: int) -> int:
    """How many lives were led: `count`, or a few less."""

    def live() -> None:
        for _ in range(count // workers):
            _life(backend, sensor)

    threads = [threading.Thread(target=live) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count // workers * workers


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime
