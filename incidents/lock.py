"""One process at a time, and a message that says which one it is."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


class LockedError(Exception):
    """Another process holds it; the message names the process."""


@dataclass(slots=True)
class Lock:
    """A held lock; it ends with `release` or with the process, however that ends."""

    fd: int

    def release(self) -> None:
        """Give it up. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def acquire(path: Path, what: str) -> Lock:
    """Lock `path` for this process, or raise LockedError at once. `what` is named in the message."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _holder(fd)
        os.close(fd)
        raise LockedError(
            f"{what} is in use by {holder}: stop it, or ask it instead of opening it twice"
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(_describe_self()).encode(), 0)
    return Lock(fd)


def _describe_self() -> dict[str, str | int]:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]]) if sys.argv else "python"
    return {"pid": os.getpid(), "command": command, "since": datetime.now(UTC).isoformat(timespec="seconds")}


def _holder(fd: int) -> str:
    try:
        found = json.loads(os.pread(fd, 4096, 0))
        return f"process {found['pid']} ({found['command']}, since {found['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
