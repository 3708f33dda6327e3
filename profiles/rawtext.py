"""`apparmor.raw` as one block of text: a list of its rules, each with its own line."""

from __future__ import annotations

from dataclasses import replace

from invigilator.profiles.apparmor import statements
from invigilator.profiles.errors import Place, PolicyError
from invigilator.profiles.source import Listing, Node, Scalar, Table


def expand(root: Table) -> Table:
    """`root` with every `apparmor.raw`, the phases' too, as a list. Raises PolicyError at the text's line."""
    items = {key: _expanded(item) if key == "apparmor" else item for key, item in root.items.items()}
    phases = items.get("phases")
    if isinstance(phases, Table):
        inside = {
            key: expand(item) if isinstance(item, Table) else item for key, item in phases.items.items()
        }
        items["phases"] = Table(inside, phases.places, phases.place)
    return Table(items, root.places, root.place)


def _expanded(part: Node) -> Node:
    if not isinstance(part, Table) or not isinstance(raw := part.items.get("raw"), Scalar):
        return part
    if not isinstance(raw.value, str):
        return part
    return Table({**part.items, "raw": _listing(raw, raw.value)}, part.places, part.place)


def _listing(raw: Scalar, text: str) -> Listing:
    try:
        found = list(statements.split(text))
    except statements.RuleError as error:
        raise PolicyError.at(_place(raw, error.line), str(error), error.fix) from error
    return Listing(tuple(Scalar(_said(one), _place(raw, one.line), False) for one in found), raw.place)


def _said(one: statements.Statement) -> str:
    """A block is refused later, as no rule; its brace says so."""
    return f"{one.text} {{" if one.opens else one.text or "}"


def _place(raw: Scalar, line: int) -> Place:
    return replace(raw.place, line=raw.place.line + 1 + line, column=1) if raw.block else raw.place
