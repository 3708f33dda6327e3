"""A node inside a guest: the commands as they are typed, and the record in the place of `guard serve`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from record import Record

from invigilator.guard.ship import URL_VARIABLE

HOME = Path("/var/lib/invigilator")
TIMEOUT_S = 1200
"""A minute, were the processor not emulated."""


@dataclass(frozen=True)
class Node:
    """A state folder of its own, with its agent; `record` is what it shipped. `settings`: more of the
    environment."""

    home: Path
    url: str
    record: Record
    settings: Mapping[str, str] = field(default_factory=dict)

    def guard(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """A command as it is typed."""
        return subprocess.run(
            [sys.executable, "-m", "invigilator.guard.cli.main", *map(str, words)],
            capture_output=True, text=True, env=self.environment(), timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Of its processes."""
        return {**os.environ, "INVIGILATOR_HOME": str(self.home), URL_VARIABLE: self.url, **self.settings}

    @contextmanager
    def agent(self) -> Iterator[None]:
        """Its agent, until the block ends."""
        started = subprocess.Popen(
            [sys.executable, "-m", "invigilator.guard.agent"],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
        )
        try:
            while not (self.home / "run" / "agent.sock").exists():
                assert started.poll() is None, f"the agent ended with {started.returncode}"
                time.sleep(0.5)
            yield
        finally:
            started.terminate()
            started.wait(120)
