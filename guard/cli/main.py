"""The `guard` command. Groups of commands are files beside this one; nothing heavy is imported at the top."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from invigilator.guard.cli.failures import explain

HELP = """Watch over AI agents in their sandboxes: confine, record, judge, and hand trainers a penalty.

Exit status: 0 done; 1 refused, not found, or the check failed; 2 wrong usage; 3 something is missing on this
machine; 4 a service does not answer. `guard run` ends with its command's own status.
"""

EPILOG = """Begin with `guard doctor`, then `guard run --policy swe-task -- bash -c 'echo hello'`.
Every list prints a table to a terminal and JSON with --json."""


class Ordered(TyperGroup):
    """Commands in the order in which a newcomer needs them, not groups last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, known ones first."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


app = typer.Typer(
    cls=Ordered,
    name="guard",
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MODULES = (
    "run",
    "doctor",
    "policy",
    "incidents",
    "penalties",
    "sql",
    "replay",
    "evaluate",
    "bench",
    "daemons",
    "token",
    "version",
)
"""Each module's `register(app)` adds its commands."""

ORDER = (
    "doctor", "run", "policy", "incidents", "penalties", "sql", "queries", "replay", "eval", "bench",
    "up", "down", "status", "agent", "serve", "token", "completion", "version",
)  # fmt: skip


def mount() -> None:
    """Add the commands of every module that this installation has."""
    for name in MODULES:
        full_name = f"invigilator.guard.cli.{name}"
        if importlib.util.find_spec(full_name) is not None:
            importlib.import_module(full_name).register(app)


def main() -> None:
    """Entry point: run the command; an error becomes one line on stderr and an exit status."""
    mount()
    try:
        status = app(prog_name="guard", standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        status = explain(error)
    except KeyboardInterrupt:
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
