"""The real command, as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GUARD = [sys.executable, "-m", "invigilator.guard.cli.main"]
TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Guard:
    """Runs `guard` with a home; call it with the arguments."""

    home: Path
    environment: Mapping[str, str]

    def __call__(self, *arguments: str | bytes, stdin: str = "", uid: int | None = None) -> Done:
        done = subprocess.run(
            [*GUARD, *arguments],
            input=stdin.encode(),
            capture_output=True,
            timeout=TIMEOUT_S,
            env={**self.environment, "INVIGILATOR_HOME": str(self.home)},
            user=uid,
            extra_groups=[] if uid is not None else None,
        )
        return Done(
            done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )
