"""What of the system's folders must not enter a sandbox, whose root passes every check of permissions: what
"other" cannot read or pass through on the host, devices, sockets, and the guard's own.

A file's mode tells it, and no folder's time, so all of it is walked: a second for 160,000 names. What was
found holds for `RECHECK_S`, also for the next agent; then another walk is made beside the work. Where
packages change, one is made at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from invigilator.sandbox.base import SandboxError, UnavailableError

RECHECK_S = 300.0
WALK_TIMEOUT_S = 600.0
_CLOSED = (
    "(", "-type", "d", "!", "-perm", "-005", "-o", "-type", "f", "!", "-perm", "-004",
    "-o", "!", "-type", "d", "!", "-type", "f", "!", "-type", "l", ")",
)  # fmt: skip

Names = tuple[str, ...]
"""A path below a folder, as its components."""


@dataclass(frozen=True, slots=True)
class Found:
    """What must not enter, by folder; `state`: of which state of the host's packages."""

    state: str
    paths: dict[str, list[Names]]

    @property
    def print(self) -> str:
        """Another where anything differs."""
        content = json.dumps([self.state, self.paths], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def unreadable(top: Path, own: Iterable[Path]) -> list[Names]:
    """Paths below `top` that must not enter; what lies below one of them is not told apart."""
    command = ["find", os.fspath(top), "-ignore_readdir_race", "-xdev", "-mindepth", "1", *_CLOSED]
    try:
        walk = subprocess.run(
            [*command, "-print0", "-prune"], capture_output=True, timeout=WALK_TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise UnavailableError("no find: apt-get install findutils") from error
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"looking through {top} took longer than {WALK_TIMEOUT_S:g} s") from error
    if walk.returncode != 0:
        raise SandboxError(f"cannot look through {top}: {os.fsdecode(walk.stderr).strip()[-300:]}")
    closed = [Path(os.fsdecode(path)) for path in walk.stdout.split(b"\0") if path]
    guarded = [path for path in own if path != top and path.is_relative_to(top) and os.path.lexists(path)]
    return _outermost(path.relative_to(top).parts for path in (*closed, *guarded))


def _outermost(paths: Iterable[Names]) -> list[Names]:
    kept: set[Names] = set()
    for names in sorted(set(paths), key=len):
        if not any(names[:depth] in kept for depth in range(1, len(names))):
            kept.add(names)
    return sorted(kept)


class Closed:
    """What must not enter of the given folders, as of at most `recheck_s` ago. Not thread-safe."""

    def __init__(
        self, record: Path, folders: Sequence[Path], own: Sequence[Path], recheck_s: float = RECHECK_S
    ) -> None:
        """`record`: where it is kept for the next agent."""
        self._record = record
        self._folders = folders
        self._own = own
        self._recheck_s = recheck_s
        self._known: tuple[float, Found] | None = None
        self._walk: threading.Thread | None = None

    def current(self, state: str) -> Found:
        """What is known to be closed; walks where that is of another state, or nothing is known."""
        if self._known is None:
            self._known = self._read()
        if self._known is None or self._known[1].state != state:
            return self.check(state)
        at, found = self._known
        if time.monotonic() - at > self._recheck_s and (self._walk is None or not self._walk.is_alive()):
            self._walk = threading.Thread(target=self._check_beside, args=(state,), daemon=True)
            self._walk.start()
        return found

    def check(self, state: str) -> Found:
        """Walk now."""
        began = time.monotonic()
        found = Found(state, {os.fspath(one): unreadable(one, self._own) for one in self._folders})
        self._known = (began, found)
        self._write(found)
        return found

    def _check_beside(self, state: str) -> None:
        # What was known before stays in force; the next sandbox has it tried again.
        with contextlib.suppress(SandboxError):
            self.check(state)

    def _read(self) -> tuple[float, Found] | None:
        try:
            age_s = time.time() - self._record.stat().st_mtime
            content = json.loads(self._record.read_bytes())
            paths = {top: [tuple(names) for names in found] for top, found in content["paths"].items()}
            whole = list(paths) == [os.fspath(one) for one in self._folders]
            same = content["own"] == [os.fspath(path) for path in self._own]
            found = Found(str(content["state"]), paths)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        young = 0 <= age_s <= self._recheck_s
        return (time.monotonic() - age_s, found) if young and whole and same else None

    def _write(self, found: Found) -> None:
        own = [os.fspath(path) for path in self._own]
        content = json.dumps({"state": found.state, "own": own, "paths": found.paths})
        unfinished = self._record.with_name(f".{self._record.name}.{os.getpid()}")
        try:
            unfinished.write_text(content)
            unfinished.replace(self._record)
        except OSError:  # then the next agent walks; a full disk is said by whoever needs more of it
            unfinished.unlink(missing_ok=True)
