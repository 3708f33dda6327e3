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
"""


def work(rounds: int) -> Section:
    """Wall time of the same work, round by round."""
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
            without: list[float] = []
            watched: list[float] = []
            for number in range(rounds + 1):
                plain = _timed(backend, None, workspace)
                with Sensor.open() as sensor, place.drained(sensor):
                    seen = _timed(backend, sensor, workspace)
                if number:
                    without.append(plain)
                    watched.append(seen)
        finally:
            backend.close()
    section.add("without the sensor", "s", without)
    section.add("sensor ÷ without", "×", ratios(watched, without), at_most=1.03)
    return section


def _prepare(workspace: Path) -> None:
    origin = workspace / "origin"
    origin.mkdir(parents=True)
    bring(Fetch(source=PACKAGE), origin, default_cache())
    bring(Fetch(wheels=[PACKAGE, "pytest==8.3.4"], into="wheels"), workspace, default_cache())
    git = ["git", "-C", str(origin), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "import"]):
        subprocess.run([*git, *command], check=True, timeout=60)


def _timed(backend: ProcessBackend, sensor: Sensor | None, workspace: Path) -> float:
    with place.started(backend, sensor, workspace) as box:
        began = time.perf_counter()
        place.output_of(box, ["bash", "-c", SCRIPT])
        return time.perf_counter() - began
