"""Errors: one line on stderr (what is wrong, where, what to do), or one JSON object, and an exit status."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NoReturn

from invigilator.guard.cli.output import plain
from invigilator.guard.errors import GuardError, MissingError
from invigilator.guard.home import HOME_VARIABLE, Home
from invigilator.guard.packages import INSTALL, missing_package

DEBUG_VARIABLE = "INVIGILATOR_DEBUG"
STATUS_BY_NAME = {
    "UnavailableError": 3,
    "SensorUnavailable": 3,
    "SensorUnavailableError": 3,
    "SeccompMissingError": 3,
}
"""Exit status of errors of lower rooms, by class name: importing those rooms here would cost every start."""
FIX_BY_ERRNO = {
    errno.EACCES: f"become root (sudo), or set {HOME_VARIABLE} to a folder of your own",
    errno.EPERM: f"become root (sudo), or set {HOME_VARIABLE} to a folder of your own",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is no folder",
    errno.EISDIR: "name a file",
    errno.EEXIST: "name another, or remove what is there",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "name a place that can be written",
    errno.ENAMETOOLONG: "give a shorter name",
}
PRINTING = ("invigilator.guard.cli", "__main__", "typer", "rich")
OUTPUT_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


@dataclass(frozen=True, slots=True)
class Failure:
    """What is wrong, where, what to do, and the exit status. `more`: further errors of the same file."""

    message: str
    where: str = ""
    fix: str = ""
    status: int = 1
    more: tuple[Failure, ...] = ()

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return "; ".join([text, self.fix] if self.fix else [text])

    def to_json(self) -> dict[str, Any]:
        """For programs: `message`, `where`, `fix`, and `errors` where there are several."""
        first, *more = (
            {"message": one.message, "where": one.where, "fix": one.fix} for one in (self, *self.more)
        )
        return {**first, "errors": [first, *more]} if more else first


def explain(error: Exception, *, as_json: bool | None = None) -> int:
    """Print `error` and return the exit status for it. `as_json`: None: as the command line asks."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, BrokenPipeError) and reader_is_gone():
        end_by_sigpipe()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error, file=sys.stderr)
        return 2
    failure = describe(error)
    if wants_json(sys.argv[1:]) if as_json is None else as_json:
        print(json.dumps(failure.to_json()), file=sys.stderr)
    else:
        rest = f" (and {len(failure.more)} more: see `guard policy check`)" if failure.more else ""
        print(f"guard: {plain(failure)}{rest}", file=sys.stderr)
    return failure.status


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON; what follows `--` is another command's."""
    return "--json" in takewhile(lambda word: word != "--", words)


def reader_is_gone() -> bool:
    """Whether nobody reads standard output any more."""
    look = select.poll()
    look.register(1, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in look.poll(0))


def is_of_output(error: OSError) -> bool:
    """Whether an error that names no file was raised by a command itself, or by what prints for it."""
    names = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(names) and names[-1].startswith(PRINTING)


def end_by_sigpipe() -> NoReturn:
    """End as every tool does whose reader went away: by SIGPIPE, without a word."""
    # What Python would flush at exit has nowhere to go.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    os._exit(128 + signal.SIGPIPE)


def describe(error: Exception) -> Failure:
    """What an error says, and the exit status for it."""
    if isinstance(error, ModuleNotFoundError) and (name := missing_package(error)):
        error = MissingError(f"this command needs the Python package {name}", fix=INSTALL)
    if isinstance(error, GuardError):
        return Failure(error.problem, error.where, error.fix, error.exit_code)
    if isinstance(error, OSError) and (failure := of_system(error)):
        return failure
    if isinstance(error, UnicodeEncodeError):
        return Failure(
            "only a file's name may hold bytes that are no UTF-8", repr(error.object)[:100], status=2
        )
    if hasattr(error, "format_message"):
        return usage(error)
    if hasattr(error, "problems"):
        first, *more = (Failure(one.message, str(one.place), one.fix) for one in error.problems)
        return Failure(first.message, first.where, first.fix, more=tuple(more))
    names = [kind.__name__ for kind in type(error).__mro__]
    if type(error).__module__.startswith("invigilator."):
        status = next((STATUS_BY_NAME[name] for name in names if name in STATUS_BY_NAME), 1)
        return Failure(str(error), status=status)
    fix = f"set {DEBUG_VARIABLE}=1 to see where, and please report it"
    return Failure(f"unexpected {names[0]}: {error}", fix=fix)


def of_system(error: OSError) -> Failure | None:
    """The system's no to a file, to the output, or to a service; None where it is none of these."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return Failure(reason, os.fsdecode(error.filename), FIX_BY_ERRNO.get(error.errno or 0, ""))
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and not is_of_output(error):
        where = "" if "--home" in sys.argv else str(Home.locate().root)
        fix = f"free some, or set {HOME_VARIABLE} to a folder on another disk"
        return Failure("no space left for the state folder", where, fix)
    if error.errno in OUTPUT_ERRNOS:
        fix = FIX_BY_ERRNO.get(error.errno or 0, "name another place for it")
        return Failure(f"the output cannot be written: {reason}", fix=fix)
    if isinstance(error, ConnectionError):
        return Failure(f"a service went away: {reason}", fix="try again; `guard status` shows it", status=4)
    return None


def usage(error: Any) -> Failure:
    """What a command that was called wrongly is told."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "guard"
    text = " ".join(str(error.format_message()).split()).replace("Value error, ", "")
    return Failure(text.rstrip("."), fix=f"see `{where} --help`", status=2)
