"""The agent's unit under a systemd that is the first process; a record stands for the service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

UNIT = "invigilator-agent.service"
FOLDER = Path("/run/systemd/system")
HOME = Path("/var/lib/invigilator")
RAN = 'echo ran; echo "# x" >>/usr/bin/ldd'


def systemctl(*words: str) -> str:
    """What systemctl says."""
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr + journal()
    return done.stdout.strip()


def journal() -> str:
    """What the unit logged."""
    command = ["journalctl", "--no-pager", "-n", "60", "-u", UNIT]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout


def told(name: str) -> str:
    """A property of the unit."""
    return systemctl("show", "--value", "--property", name, UNIT)


def guarded(rollout: str, report: Path) -> dict[str, Any]:
    """One guarded rollout through the unit's agent: its report."""
    command = [sys.executable, "-m", "invigilator.guard.cli.main", "run", "--rollout", rollout]
    done = subprocess.run(
        [*command, "--report", str(report), "--", "bash", "-c", RAN],
        capture_output=True, text=True, timeout=1200, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "INVIGILATOR_HOME": str(HOME)},
    )  # fmt: skip
    assert done.stdout == "ran\n", done.stderr + journal()
    content: dict[str, Any] = json.loads(report.read_text())
    return content


@pytest.fixture(scope="module")
def unit() -> Iterator[None]:
    """The unit, started; without the service's, which it wants: chDB is too large for this processor."""
    from record import served

    from invigilator.guard import deploy
    from invigilator.guard.home import Home

    FOLDER.mkdir(parents=True, exist_ok=True)
    deploy.write_units(FOLDER, Home(HOME))
    (FOLDER / "invigilator-serve.service").unlink()
    with served() as (url, _):
        settings = Path("/etc/invigilator/agent.env")
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(f"INVIGILATOR_SERVE_URL={url}\nPATH={os.environ['PATH']}\n")
        systemctl("daemon-reload")
        systemctl("start", UNIT)
        yield
        systemctl("stop", UNIT)


def test_the_agent_is_up_once_systemd_says_so_and_watches_within_its_bounds(
    unit: None, tmp_path: Path
) -> None:
    assert Path("/proc/1/comm").read_text().strip() == "systemd"
    assert told("ActiveState") == "active" and told("WatchdogUSec") == "1min"
    assert (HOME / "run" / "agent.sock").exists()
    report = guarded("first", tmp_path / "report.json")
    assert report["failure"] is None and report["status"] == "final", report
    assert [one["kind"] for one in report["incidents"]] == ["system_binary_overwrite"]
    assert report["enforcement"]["cgroup"] == report["enforcement"]["seccomp"] == "enforce"


def test_a_killed_agent_is_begun_again(unit: None, tmp_path: Path) -> None:
    before = int(told("MainPID"))
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + 1200
    while told("ActiveState") != "active" or int(told("MainPID")) in (0, before):
        assert time.monotonic() < deadline, journal()
        time.sleep(1)
    assert int(told("NRestarts")) >= 1
    assert guarded("second", tmp_path / "report.json")["status"] == "final"


def test_stopped_it_leaves_no_process(unit: None) -> None:
    pid = int(told("MainPID"))
    systemctl("stop", UNIT)
    assert told("ActiveState") == "inactive" and told("Result") == "success", journal()
    assert not Path(f"/proc/{pid}").exists()
