"""The init of containers: the launcher's binary, where the container's root may execute it."""

from __future__ import annotations

import os
from pathlib import Path

from invigilator.sandbox import build


def pause(cache: Path) -> Path:
    """A copy that anybody may execute, below a folder that only root enters; made where it is missing."""
    binary = build.launcher(cache)
    copy = binary.with_name(f"pause-{binary.name.rpartition('-')[2]}")
    if not copy.exists():
        unfinished = copy.with_name(f".{copy.name}.{os.getpid()}")
        unfinished.write_bytes(binary.read_bytes())
        unfinished.chmod(0o555)
        unfinished.replace(copy)
    return copy
