"""Names that differ only by chance or by version, told from each other by evidence alone.

A pattern needs at least two distinct names of one folder. Names that the program made itself may differ in
numbers, or in the random part that mkstemp(3), mktemp(1) and their like give them; names that were there may
differ in a version (digits with a dot), and in nothing else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from invigilator.profiles.apparmor.names import literal

INSTANCES_MIN = 2
RANDOM_MIN = 6
"""Random letters of mkstemp(3), the fewest of those in use (gcc's too; Python has 8, mktemp(1) 10)."""
EXTENSION_MAX = 6
_NUMBER = re.compile(rb"\d+(?:\.\d+)*")
_RANDOM = re.compile(rb"[A-Za-z0-9_]+")


class Group(NamedTuple):
    """Names of one folder and the pattern (AppArmor's) that stands for them; `why`: what they differ in."""

    pattern: str
    names: tuple[bytes, ...]
    why: str


def groups(names: Mapping[bytes, bool]) -> list[Group]:
    """Patterns over sibling names (name → whether the program made it); no name is in two of them.

    Raises NameRefusedError for names that no pattern can hold: leave them out first.
    """
    found = _random_groups(sorted(name for name, created in names.items() if created))
    taken = {name for group in found for name in group.names}
    rest = {name: created for name, created in names.items() if name not in taken}
    return found + _number_groups(rest)


def _random_groups(names: Sequence[bytes]) -> list[Group]:
    """First names that begin alike (tmpab12cd34), then those that are random from their first letter on."""
    found = _alike(names, 2)
    taken = {name for group in found for name in group.names}
    return found + _alike([name for name in names if name not in taken], 0)


def _alike(names: Sequence[bytes], begun: int) -> list[Group]:
    alike: dict[tuple[int, bytes, bytes], list[bytes]] = defaultdict(list)
    for name in names:
        alike[len(name), name[:begun], _extension(name)].append(name)
    found = []
    for (_, _, extension), members in sorted(alike.items()):
        share = 0.5 if begun else 1.0
        if len(members) >= INSTANCES_MIN and (pattern := _random_pattern(members, extension, share)):
            found.append(Group(pattern, tuple(members), "a random part of names that the program made"))
    return found


def _random_pattern(names: Sequence[bytes], extension: bytes, share: float) -> str | None:
    start = 0
    while start < len(names[0]) and len({name[start] for name in names}) == 1:
        start += 1
    stems = [name[: len(name) - len(extension)] for name in names]
    end = len(stems[0])
    while end > start and len({stem[end - 1] for stem in stems}) == 1:
        end -= 1
    # Chance makes neighbours of the random part equal too: its length is even wherever it is made.
    if (end - start) % 2 and end < len(stems[0]):
        end += 1
    elif (end - start) % 2 and start > 0 and names[0][start - 1 : start].isalnum():
        start -= 1
    middles = [stem[start:end] for stem in stems]
    if end - start < RANDOM_MIN or not all(_RANDOM.fullmatch(middle) for middle in middles):
        return None
    if sum(map(_looks_random, middles)) < share * len(middles):
        return None
    return literal(names[0][:start]) + "?" * (end - start) + literal(names[0][end:])


def _looks_random(middle: bytes) -> bool:
    mixed = middle.lower() != middle and middle.upper() != middle and not middle.istitle()
    return mixed or any(byte in b"0123456789_" for byte in middle)


def _extension(name: bytes) -> bytes:
    dot = name.rfind(b".")
    return name[dot:] if dot > 0 and len(name) - dot <= EXTENSION_MAX else b""


def _number_groups(names: Mapping[bytes, bool]) -> list[Group]:
    alike: dict[tuple[bytes, ...], list[bytes]] = defaultdict(list)
    for name in sorted(names):
        if _NUMBER.search(name):
            alike[tuple(_NUMBER.split(name))].append(name)
    found = []
    for pieces, members in sorted(alike.items()):
        made = all(names[name] for name in members)
        versions = all(b"." in number for name in members for number in _NUMBER.findall(name))
        # A name of numbers alone would stand for every other one: a user's, a process's.
        if len(members) >= INSTANCES_MIN and any(pieces) and (made or versions):
            why = "a number in names that the program made" if made else "a version"
            found.append(Group("[0-9]*".join(map(literal, pieces)), tuple(members), why))
    return found
