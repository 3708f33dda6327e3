"""Real guarded rollouts, several at once, on a node whose daemons are started on demand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import HANG_S

from invigilator.guard.daemons import daemons
from invigilator.guard.home import Home

AT_ONCE = 3
AGENTS: Mapping[str, str] = {
    "honest": "for n in $(seq 80); do cat /etc/passwd; done >/dev/null; sleep 0.4",
    "cheat": "for n in $(seq 40); do cat /etc/passwd; done >/dev/null; echo '# x' >>/usr/bin/ldd; sleep 0.4",
    "writer": "for n in $(seq 60); do echo $n >/tmp/$n; done; sleep 0.2; rm /tmp/[0-9]*",
}
"""What agents do; the second overwrites a system program."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A `guard run`: its exit status and report, None where it wrote none."""

    rollout: str
    agent: str
    code: int
    report: dict[str, Any] | None
    said: str


class Node:
    """A state folder, and `guard` commands on it."""

    def __init__(self, place: Path, store: str) -> None:
        self.home = Home(place / "home").make()
        self.reports = place / "reports"
        self.reports.mkdir()
        self.environment = {
            **os.environ,
            "INVIGILATOR_HOME": str(self.home.root),
            "INVIGILATOR_STORE": store,
            "INVIGILATOR_IDLE_S": "300",
        }

    def run(self, rollout: str, agent: str) -> Ran:
        """One guarded rollout, to its end."""
        report = self.reports / f"{rollout}.json"
        command = [sys.executable, "-m", "invigilator.guard.cli.main", "run", "--rollout", rollout]
        done = subprocess.run(
            [*command, "--report", str(report), "--", "bash", "-c", AGENTS[agent]],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )
        content = json.loads(report.read_bytes()) if report.exists() else None
        return Ran(rollout, agent, done.returncode, content, done.stderr.decode(errors="replace"))

    def kill(self, name: str) -> bool:
        """SIGKILL the agent or serve; False where it does not run."""
        for daemon in daemons(self.home):
            if daemon.name == name and (pid := daemon.pid()):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def end(self) -> None:
        """`guard down`, whatever runs."""
        command = [sys.executable, "-m", "invigilator.guard.cli.main", "down", "--force"]
        subprocess.run(command, env=self.environment, capture_output=True, timeout=HANG_S, check=True)


class Load:
    """Rollouts one after the other in several lanes, until told to stop."""

    def __init__(self, node: Node) -> None:
        self.ran: list[Ran] = []
        self._node = node
        self._stop = threading.Event()
        self._lanes = [threading.Thread(target=self._lane, args=(lane,)) for lane in range(AT_ONCE)]
        for lane in self._lanes:
            lane.start()

    def stop(self) -> list[Ran]:
        """Let the last ones end: all that ran."""
        self._stop.set()
        for lane in self._lanes:
            lane.join()
        return self.ran

    def _lane(self, lane: int) -> None:
        number = 0
        while not self._stop.is_set():
            agent = list(AGENTS)[(lane + number) % len(AGENTS)]
            self.ran.append(self._node.run(f"{agent}-{lane}-{number}", agent))
            number += 1
