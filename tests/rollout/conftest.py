"""Real rollouts: agent, sensor, sandboxes, detectors and store, in a state folder of the tests' own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from invigilator.guard.home import HOME_VARIABLE, Home
from invigilator.guard.node import IDLE_VARIABLE

TIMEOUT_S = 180.0
"""For hangs alone, here and wherever a test waits: no machine is so loaded."""
ROOT = os.geteuid() == 0
BTF = Path("/sys/kernel/btf/vmlinux").exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say loudly, and count, what this machine cannot show."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not (ROOT and BTF) and "offline" not in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs root and a kernel with BTF: no rollout was run"))


@dataclass(frozen=True)
class Run:
    """What a `guard run` did."""

    code: int
    stdout: bytes
    stderr: bytes
    report: dict[str, Any] | None

    @property
    def said(self) -> str:
        """Its stderr as text."""
        return self.stderr.decode(errors="replace")

    def incident(self, kind: str) -> dict[str, Any]:
        """The report's one incident of a kind."""
        assert self.report is not None, self.said
        found = [one for one in self.report["incidents"] if one["kind"] == kind]
        assert len(found) == 1, (kind, [(one["kind"], one["outcome"]) for one in self.report["incidents"]])
        return found[0]

    def kinds(self) -> set[str]:
        """Kinds of the report's incidents that cost something."""
        assert self.report is not None, self.said
        return {one["kind"] for one in self.report["incidents"] if one["counted"]}


class Node:
    """A state folder with its daemons, started on demand as a user's are."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.reports = folder / "reports"
        self.reports.mkdir()
        self._count = 0

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a command on this node sees."""
        return {**os.environ, HOME_VARIABLE: str(self.home.root), IDLE_VARIABLE: "300", **(more or {})}

    def command(self, *arguments: str | bytes | Path) -> list[str | bytes | Path]:
        """A `guard` command."""
        return [sys.executable, "-m", "invigilator.guard.cli.main", *arguments]

    def guard(
        self,
        *arguments: str | bytes | Path,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        **options: Any,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a `guard` command to its end."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            env=self.environment(environment),
            timeout=timeout_s,
            check=False,
            **options,
        )

    def run(
        self, *arguments: str | bytes | Path, command: Sequence[str | bytes] | str, **options: Any
    ) -> Run:
        """`guard run … -- command`, with its report."""
        self._count += 1
        report = self.reports / f"{self._count}.json"
        words = ["bash", "-c", command] if isinstance(command, str) else command
        done = self.guard("run", "--report", report, *arguments, "--", *words, **options)
        content = json.loads(report.read_text()) if report.exists() else None
        return Run(done.returncode, done.stdout, done.stderr, content)

    def pid(self, daemon: str) -> int | None:
        """Process id of the daemon that holds its lock, if one does."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.home.run / f"{daemon}.lock").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            return pid if b"invigilator" in command else None
        return None

    def end(self) -> None:
        """End the daemons, and wait until they are gone."""
        for daemon in ("agent", "serve"):
            if (pid := self.pid(daemon)) is not None:
                os.kill(pid, signal.SIGTERM)
                wait_until(lambda pid=pid: not alive(pid), TIMEOUT_S)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def wait_until(condition: Any, timeout_s: float) -> None:
    """Wait for a condition; a failed test where it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@contextlib.contextmanager
def new_node() -> Iterator[Node]:
    """A node of one's own, and nothing of it left behind."""
    folder = Path(tempfile.mkdtemp(prefix="rollout-", dir="/tmp"))
    node = Node(folder)
    try:
        yield node
    finally:
        log = node.home.run / "agent.log"
        if log.exists():
            print(log.read_text(errors="replace")[-20_000:])
        node.end()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The node that most tests share, as rollouts of one machine do."""
    with new_node() as made:
        yield made


@pytest.fixture
def own_node() -> Iterator[Node]:
    """A node for a test that ends or breaks it."""
    with new_node() as made:
        yield made


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder to work on."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello\n")
    return folder
