"""Errors for people: one line on stderr (what is wrong, where, what to do) and an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from invigilator.guard.cli.output import plain
from invigilator.guard.errors import GuardError, MissingError
from invigilator.guard.packages import INSTALL, missing_package

DEBUG_VARIABLE = "INVIGILATOR_DEBUG"
STATUS_BY_NAME = {
    "UnavailableError": 3,
    "SensorUnavailable": 3,
    "SensorUnavailableError": 3,
    "SeccompMissingError": 3,
}
"""Exit status of errors of lower rooms, by class name: importing those rooms here would cost every start."""


def explain(error: Exception) -> int:
    """Print `error` as one line and return the exit status for it."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, BrokenPipeError):
        # The reader went away; what Python would flush at exit has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error, file=sys.stderr)
        return 2
    text, status = describe(error)
    print(f"guard: {plain(text)}", file=sys.stderr)
    return status


def describe(error: Exception) -> tuple[str, int]:
    """The line and the exit status of an error."""
    if isinstance(error, ModuleNotFoundError) and (name := missing_package(error)):
        error = MissingError(f"this command needs the Python package {name}", fix=INSTALL)
    if isinstance(error, GuardError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}", 1
    if hasattr(error, "format_message"):
        return usage(error)
    if hasattr(error, "problems"):
        more = len(error.problems) - 1
        rest = f" (and {more} more: see `guard policy check`)" if more else ""
        return f"{error.problems[0]}{rest}", 1
    names = [kind.__name__ for kind in type(error).__mro__]
    if type(error).__module__.startswith("invigilator."):
        return str(error), next((STATUS_BY_NAME[name] for name in names if name in STATUS_BY_NAME), 1)
    text = f"unexpected {names[0]}: {error}; set {DEBUG_VARIABLE}=1 to see where, and please report it"
    return text, 1


def usage(error: Any) -> tuple[str, int]:
    """The line and the exit status of a command that was called wrongly."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "guard"
    text = " ".join(str(error.format_message()).split()).replace("Value error, ", "")
    return f"{text.rstrip('.')}; see `{where} --help`", 2
