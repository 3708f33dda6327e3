"""The `guard` command. Groups of commands are files beside this one; nothing heavy is imported at the top."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import typer
from typer._completion_classes import completion_init

from invigilator.guard.cli.failures import end_by_sigpipe, explain
from invigilator.guard.cli.help import Ordered, tidy, width
from invigilator.guard.notice import listen

HELP = """Watch over AI agents in their sandboxes: confine, record, judge, and hand trainers a penalty.

Exit status: 0 done; 1 refused, not found, or the check failed; 2 wrong usage; 3 something is missing on this
machine; 4 a service does not answer. `guard run` and `guard exec` end with their
command's own status.
"""

EPILOG = """Begin with `guard doctor`, then `guard run --policy swe-task -- bash -c 'echo hello'`.
Every list prints a table to a terminal and JSON with --json; an error is then JSON too, on stderr."""


app = typer.Typer(
    cls=Ordered,
    name="guard",
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,  # its options would stand beside `guard completion`, and edit files of the user's
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": width()},
)

MODULES = (
    "run",
    "attach",
    "joining",
    "doctor",
    "policy",
    "incidents",
    "penalties",
    "sql",
    "export",
    "replay",
    "evaluate",
    "bench",
    "daemons",
    "store",
    "units",
    "metrics",
    "audit",
    "retention",
    "forget",
    "token",
    "version",
)
"""Each module's `register(app)` adds its commands."""


def mount() -> None:
    """Add the commands of every module that this installation has."""
    for name in MODULES:
        full_name = f"invigilator.guard.cli.{name}"
        if importlib.util.find_spec(full_name) is not None:
            importlib.import_module(full_name).register(app)


def command() -> Any:
    """The whole command, ready to be called."""
    completion_init()
    mount()
    made = typer.main.get_command(app)
    tidy(made)
    return made


def main() -> None:
    """Entry point: run the command; an error becomes one line on stderr and an exit status."""
    open_standard_streams()
    if sys.stderr.isatty():
        listen(lambda text: print(f"guard: {text}", file=sys.stderr))
    try:
        status = command().main(prog_name="guard", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as end:
        # Made of a reader's going away; otherwise completion has ended.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        end_by_sigpipe()
    except Exception as error:
        status = explain(error)
        _give_up_output()
    except KeyboardInterrupt:
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


def open_standard_streams() -> None:
    """Give closed standard streams a meaning: else another file would get their numbers, and the command."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # Python has None for a stream that was closed, and libraries write to it without asking.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _give_up_output() -> None:
    """Where even the flush fails, Python must not try it once more at its end and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
