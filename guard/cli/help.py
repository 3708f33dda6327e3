"""How help looks: commands in a newcomer's order, whole sentences, words for what a value is, any width."""

from __future__ import annotations

import shutil
from typing import Any

from typer.core import TyperGroup

ORDER = (
    "doctor", "run", "attach", "phase", "exec", "policy", "incidents", "penalties", "sql", "queries",
    "replay", "eval", "bench", "up", "down", "status", "agent", "serve", "token", "completion", "version",
)  # fmt: skip
WIDTH_MOST = 100
WIDTH_LEAST = 30
SENTENCE_MOST = 200


def width() -> int:
    """Columns that help takes: the terminal's, within reason."""
    return max(WIDTH_LEAST, min(shutil.get_terminal_size().columns, WIDTH_MOST) - 2)


class Ordered(TyperGroup):
    """Commands in the order in which a newcomer needs them, each with its first sentence whole."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, known ones first."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The names with what each does."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, one.get_short_help_str(SENTENCE_MOST)) for name, one in found if one and not one.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def tidy(command: Any) -> None:
    """Name arguments by a word in capitals alone, as the Python type behind it says nothing to people; leave
    room for sentences in a narrow terminal."""
    command.context_class = _narrow(command.context_class)
    for below in getattr(command, "commands", {}).values():
        tidy(below)
    for one in command.params:
        if one.param_type_name == "argument":
            one.metavar = one.metavar or str(one.name).upper()
            one.display_type_rich = lambda ctx: ""


def _narrow(context_class: Any) -> Any:
    class Formatter(context_class.formatter_class):  # type: ignore[misc]
        def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
            super().write_dl(rows, min(col_max, self.width // 3), col_spacing)

    return type("Context", (context_class,), {"formatter_class": Formatter})
