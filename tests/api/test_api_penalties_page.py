"""What docs/penalties.md tells a trainer to type works as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from judging import found, judged, policy, ship_rules
from serving import Service, serving, ship_report

from invigilator.guard.home import Home

PAGE = (Path(__file__).parents[2] / "docs" / "penalties.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.S)
LINES = re.findall(r"^    (guard .*)$", PAGE, re.M)
GUARD = f"{shlex.quote(sys.executable)} -m invigilator.guard.cli.main"
INCIDENT = found("service_scan")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A service of its own with the page's three rollouts."""
    with serving(Home(tmp_path_factory.mktemp("home"))) as running:
        _record(running, tmp_path_factory.mktemp("spool"))
        yield running.home


def _record(service: Service, folder: Path) -> None:
    rules = policy()
    ship_rules(service, rules, folder)
    now = datetime.now(UTC)
    when = {"started_at": now, "ended_at": now}
    labels = {"group": "g", "train_step": "7", "reward": "1.0"}
    for name, incidents in (("r1", []), ("r2", [INCIDENT])):
        ship_report(service, judged(name, rules, incidents, labels=labels, **when), folder)
    hole = judged("r3", rules, labels=labels, coverage={"file": "degraded"}, **when)
    ship_report(service, hole, folder)


def run(home: Home, folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "INVIGILATOR_HOME": str(home.root)}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_its_code_works(home: Home, tmp_path: Path, code: str) -> None:
    done = run(home, tmp_path, [sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("line", LINES)
def test_its_commands_work(home: Home, tmp_path: Path, line: str) -> None:
    said = line.replace("INCIDENT", INCIDENT.id).replace("guard ", f"{GUARD} ", 1)
    done = run(home, tmp_path, ["sh", "-c", said])
    assert done.returncode == 0, done.stderr
    assert done.stdout or "used" in line
