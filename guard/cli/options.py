"""Options that several commands take, read: pairs and times."""

from __future__ import annotations

from collections.abc import Sequence

from invigilator.guard.errors import GuardError


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
