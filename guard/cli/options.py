"""Options that several commands take, and how pairs and times are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from invigilator.guard.errors import GuardError

RunIdOption = Annotated[
    str | None, typer.Option("--run", metavar="ID", help="Id of the training or evaluation job.")
]
AttemptOption = Annotated[
    int, typer.Option(metavar="N", min=1, help="Which try of the rollout this is; the latest answers.")
]


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE words as a mapping; GuardError where one is none."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise GuardError(f"{text!r} is not NAME=VALUE", where=option, fix=f"write {option} NAME=VALUE")
        found[name] = value
    return found


def seconds(time_s: float | None, option: str) -> float | None:
    """A command's time; GuardError where none can have it."""
    from invigilator.guard.order import TIMEOUT_MAX_S

    if time_s is not None and not 0 < time_s <= TIMEOUT_MAX_S:
        fix = f"give a number of seconds above 0 and up to {TIMEOUT_MAX_S:g}"
        raise GuardError(f"{time_s:g} is no time that a command can have", where=option, fix=fix)
    return time_s
