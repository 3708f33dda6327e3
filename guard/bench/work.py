"""Honest work in a sandbox, without and with the sensor: clone, install from a wheel, run a test suite."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from invigilator.ebpf.sensor import Sensor
from invigilator.guard.bench import place
from invigilator.guard.bench.measure import Section, ratios
from invigilator.guard.evaluation.fetch import FetchError, bring
from invigilator.guard.evaluation.run import default_cache
from invigilator.guard.evaluation.suite import Fetch
from invigilator.sandbox.process import ProcessBackend

PACKAGE = "click==8.1.7"
SCRIPT = """set -e
git clone -q /workspace/origin /tmp/clone && cd /tmp/clone
python3 -m venv /tmp/v
/tmp/v/bin/pip install -q --no-index --find-links /workspace/wheels click pytest
/tmp/v/bin/python -m pytest -q tests >/tmp/log 2>&1
rm -rf /tmp/clone /tmp/v
times
"""
LEAST_ROUNDS = 3
MOST_S = 420.0
"""Rounds that are always made, and the time after which no other is begun."""


def work(rounds: int) -> Section:
    """Wall and CPU time of the same work, round by round: `rounds` of them, or fewer where they take long."""
    section = Section(f"git clone, install, pytest of {PACKAGE}")
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        try:
            _prepare(workspace)
        except FetchError as error:
            section.missing.append(str(error))
            return section
        backend = ProcessBackend(Path(folder) / "home", stock=1)
        try:
            samples = _rounds(backend, workspace, rounds)
        finally:
            backend.close()
    for number, what in enumerate(("wall", "CPU")):
        without, watched = ([one[number] for one in samples[arm]] for arm in ("without", "sensor"))
        section.add(f"{what}: without the sensor", "s", without)
        aim = 1.03 if what == "wall" else None
        section.add(f"{what}: sensor ÷ without", "×", ratios(watched, without), at_most=aim)
    return section


def _rounds(backend: ProcessBackend, workspace: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """The work without and with the sensor, in turn first, after a round to warm up: (wall, CPU) in s."""
    samples: dict[str, list[tuple[float, float]]] = {"without": [], "sensor": []}
    began = time.monotonic()
    for number in range(rounds + 1):
        if number > LEAST_ROUNDS and time.monotonic() - began > MOST_S:
            break
        for arm in sorted(samples, reverse=bool(number % 2)):
            taken = _watched(backend, workspace) if arm == "sensor" else _timed(backend, None, workspace)
            if number:
                samples[arm].append(taken)
    return samples


def _watched(backend: ProcessBackend, workspace: Path) -> tuple[float, float]:
    with Sensor.open() as sensor, place.drained(sensor):
        return _timed(backend, sensor, workspace)


def _prepare(workspace: Path) -> None:
    origin = workspace / "origin"
    origin.mkdir(parents=True)
    bring(Fetch(source=PACKAGE), origin, default_cache())
    bring(Fetch(wheels=[PACKAGE, "pytest==8.3.4"], into="wheels"), workspace, default_cache())
    git = ["git", "-C", str(origin), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "import"]):
        subprocess.run([*git, *command], check=True, timeout=60)


def _timed(backend: ProcessBackend, sensor: Sensor | None, workspace: Path) -> tuple[float, float]:
    with place.started(backend, sensor, workspace) as box:
        began = time.perf_counter()
        told = place.output_of(box, ["bash", "-c", SCRIPT])
        return time.perf_counter() - began, _cpu_s(told)


def _cpu_s(told: str) -> float:
    """What `times` said last: user and system time of all that the shell ran, such as `0m1.234s 0m0.567s`."""
    parts = [spent.rstrip("s").split("m") for spent in told.split()[-2:]]
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in parts)
