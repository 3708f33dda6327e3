"""One daemon of Docker's for all tests of this folder, and a node whose agent uses it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from docker_daemon import IMAGE, Daemon, import_image, missing, start

TIMEOUT_S = 180.0
"""For hangs alone: no machine is so loaded."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say loudly, and count, what this machine cannot show."""
    reason = missing()
    if reason is None and not Path("/sys/kernel/btf/vmlinux").exists():
        reason = "the sensor needs a kernel with BTF"
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Run:
    """What a `guard run` did."""

    code: int
    out: str
    said: str
    report: dict[str, Any]

    def kinds(self) -> set[str]:
        """Kinds of the report's incidents that cost something."""
        return {one["kind"] for one in self.report["incidents"] if one["counted"]}


@dataclass
class Node:
    """A state folder with its daemons, started on demand as a user's are."""

    folder: Path
    daemon: Daemon
    count: int = field(default=0)

    def guard(self, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
        """Run a `guard` command."""
        ours = {"INVIGILATOR_HOME": str(self.folder / "home"), "INVIGILATOR_IDLE_S": "300"}
        return subprocess.run(
            [sys.executable, "-m", "invigilator.guard.cli.main", *arguments],
            env={**os.environ, **ours, "DOCKER_HOST": self.daemon.host},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    def run(self, *options: str | Path, command: str | list[str], image: str = IMAGE) -> Run:
        """`guard run` in a container, with its report."""
        self.count += 1
        report = self.folder / f"{self.count}.json"
        words = ["sh", "-c", command] if isinstance(command, str) else command
        done = self.guard(
            "run", "--backend", "container", "--image", image, "--report", report, *options, "--", *words
        )
        content = json.loads(report.read_text()) if report.exists() else {}
        return Run(done.returncode, done.stdout.decode(), done.stderr.decode(), content)

    def containers(self) -> list[dict[str, Any]]:
        """All containers of the daemon."""
        found: list[dict[str, Any]] = self.daemon.client().containers(all=True)
        return found


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    # A short name: the daemon's sockets lie below it, and their paths may have 107 bytes.
    made = start(Path(tempfile.mkdtemp(prefix="dockerd-", dir="/tmp")))
    try:
        if (driver := made.client().info()["Driver"]) != "overlay2":
            pytest.skip(f"Docker's storage driver in /tmp is {driver}: containers need overlay2")
        import_image(made)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def node(daemon: Daemon) -> Iterator[Node]:
    made = Node(Path(tempfile.mkdtemp(prefix="container-", dir="/tmp")), daemon)
    try:
        yield made
    finally:
        made.guard("down")
        _gone(made.folder / "home")
        shutil.rmtree(made.folder)


def _gone(home: Path) -> None:
    """Wait until no process works on the state folder."""
    deadline = time.monotonic() + TIMEOUT_S
    while any(_is_of(home, process) for process in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "a daemon does not end"
        time.sleep(0.05)


def _is_of(home: Path, process: Path) -> bool:
    try:
        return f"INVIGILATOR_HOME={home}\0".encode() in (process / "environ").read_bytes()
    except OSError:
        return False


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello\n")
    return folder
