"""A rule of a profile as text, and the part of the policy that asked for it."""

from __future__ import annotations

from typing import NamedTuple

Where = tuple[str | int, ...]
ORDER = "rwalkm"


class Line(NamedTuple):
    """`text` of one line, without its indent; `where` in the policy, () for what every profile has."""

    text: str
    where: Where = ()


def letters(access: frozenset[str], *, deny: bool = False) -> str:
    """Access as a rule writes it. `w` holds `a`; what runs stays in the profile (`ix`, no_new_privs)."""
    kept = access - {"a"} if "w" in access else access
    said = "".join(letter for letter in ORDER if letter in kept)
    return said + (("x" if deny else "ix") if "x" in access else "")
