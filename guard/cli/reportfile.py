"""Where `guard run --report` goes: a file that is replaced whole, or a device or pipe that is written to."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from invigilator.guard.cli.output import plain
from invigilator.guard.errors import GuardError
from invigilator.guard.home import write_atomically

_LINKS_TO_STREAMS = (Path("/dev"), Path("/proc"))
"""Links there, as /dev/stdout, are the machine's own: they are written through, never replaced."""


@dataclass(frozen=True, slots=True)
class ReportFile:
    """An open place for the report. `stream`: a descriptor of what is no file and must never become one."""

    path: Path
    stream: int | None = None

    def write(self, text: str) -> None:
        """Put the report there; `GuardError` where that fails after all."""
        content = text.encode() + b"\n"
        try:
            if self.stream is None:
                write_atomically(self.path, content, 0o644)
                return
            with os.fdopen(os.dup(self.stream), "wb") as out:
                out.write(content)
        except OSError as error:
            raise _unwritable(self.path, error, "the store has the verdict: `guard penalties`") from error


def open_report(report: Path, hidden_from: Sequence[Path]) -> ReportFile:
    """The place named `report`, tried now: after the rollout it would be too late to say so. `hidden_from`:
    folders that the sandbox sees."""
    target = report.parent.resolve() / report.name
    if target.is_symlink() and not _is_stream_link(target):
        target = target.resolve()
    for folder in hidden_from:
        if target.is_relative_to(folder):
            problem = f"the report would be visible inside the sandbox, which sees {plain(folder)}"
            raise GuardError(problem, where=plain(report), fix="put --report outside of it")
    if target.is_dir():
        problem = "the report's path is a folder"
        raise GuardError(problem, where=plain(report), fix="give --report a file's path")
    try:
        if _is_stream_link(target) or (target.exists() and not target.is_file()):
            return ReportFile(target, _open_stream(target))
        with tempfile.TemporaryFile(dir=target.parent):
            return ReportFile(target)
    except OSError as error:
        raise _unwritable(report, error, "give --report a path in a folder that exists") from error


def _is_stream_link(target: Path) -> bool:
    return target.is_symlink() and any(target.is_relative_to(folder) for folder in _LINKS_TO_STREAMS)


def _open_stream(target: Path) -> int:
    mode = target.stat().st_mode
    if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        problem = "the report's path is a block device or a socket"
        raise GuardError(problem, where=plain(target), fix="give --report a file's path")
    # Without waiting: a pipe that nobody reads is an error now, not a rollout that hangs at its end.
    stream = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    os.set_blocking(stream, True)
    return stream


def _unwritable(path: Path, error: OSError, fix: str) -> GuardError:
    return GuardError(f"the report cannot be written: {error.strerror}", where=plain(path), fix=fix)
