"""How fast sandboxes come and go."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from invigilator.ebpf.events import Phase
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.bench import place
from invigilator.guard.bench.measure import Section
from invigilator.sandbox.process import ProcessBackend, ProcessSandbox

WORKERS = (1, 2, 4)
REST = "the sensor, and waiting for the command's end"


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
                timings = _life(backend, sensor)
                took = time.perf_counter() - began
                whole.append(took * 1e3)
                for name, seconds in (*timings.items(), (REST, took - _sum_of_steps(timings))):
                    steps[name].append(seconds * 1e3)
            together = {workers: _rate(backend, sensor, count, workers) for workers in WORKERS}
        finally:
            backend.close()
    section.add("create, run `true`, remove", "ms", whole)
    for workers, (rate, own_ms, launched_ms) in together.items():
        section.add(f"lives a second, by {workers}", "1/s", [rate], at_least=100)
        section.add(f"CPU a life, by {workers}: this process", "ms", [own_ms])
        section.add(f"CPU a life, by {workers}: launcher, init and command", "ms", [launched_ms])
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


def _life(backend: ProcessBackend, sensor: Sensor) -> dict[str, float]:
    with place.started(backend, sensor) as box:
        place.output_of(box, ["/usr/bin/true"])
    assert isinstance(box, ProcessSandbox)
    return dict(box.timings)


def _sum_of_steps(timings: Mapping[str, float]) -> float:
    """Without those that are parts of another."""
    return sum(seconds for name, seconds in timings.items() if ": " not in name)


def _rate(backend: ProcessBackend, sensor: Sensor, count: int, workers: int) -> tuple[float, float, float]:
    """Lives a second; milliseconds of CPU a life, of this process and of what the launcher starts."""
    launcher = backend.launcher.pid
    began, own, launched = time.perf_counter(), cpu_s(), tree_cpu_s(launcher)
    made = by_workers(backend, sensor, count, workers)
    spent = cpu_s() - own, tree_cpu_s(launcher) - launched
    return made / (time.perf_counter() - began), spent[0] / made * 1e3, spent[1] / made * 1e3


def by_workers(backend: ProcessBackend, sensor: Sensor, count: int, workers: int) -> int:
    """Lead lives; how many: `count`, or a few less."""

    def live() -> None:
        for _ in range(count // workers):
            _life(backend, sensor)

    threads = [threading.Thread(target=live) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count // workers * workers


def cpu_s() -> float:
    """Seconds of CPU that this process has used."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def tree_cpu_s(pid: int) -> float:
    """Seconds of CPU of a process and of its children that have ended (proc(5), /proc/PID/stat)."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
