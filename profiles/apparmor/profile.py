"""Policy → the text of a profile."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from invigilator.profiles import protected
from invigilator.profiles.apparmor import abi as abis
from invigilator.profiles.apparmor import files, others, raw
from invigilator.profiles.apparmor.abi import Abi
from invigilator.profiles.apparmor.files import Layout
from invigilator.profiles.apparmor.line import Line, Where
from invigilator.profiles.apparmor.names import NameRefusedError, literal
from invigilator.profiles.apparmor.others import PREFIX
from invigilator.profiles.errors import Place, PolicyError
from invigilator.profiles.paths import canonical, to_bytes, to_text
from invigilator.profiles.policy import PhaseName, Policy

if TYPE_CHECKING:
    from invigilator.profiles.library import Loaded

NAME_DIGITS = 32
"""Hex digits of the text's SHA-256 in a profile's name: 128 bits."""
NAME_FIX = "rename it, or name the folder that it is in"
FLAGS = ("attach_disconnected", "mediate_deleted")
"""A path that no mount connects to the root is matched as if it hung there, a removed file by its name."""

__all__ = ["PREFIX", "Layout", "Profile", "compile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of one phase. Two policies that say the same have the same one.

    `name`: by which the kernel knows it, made of the text's hash; `digest`: SHA-256 of the text, hex;
    `sources`: line of the text (from 1) → where the policy asked for it; `raw_lines`: `apparmor.raw`'s.
    """

    name: str
    text: str
    digest: str
    sources: Mapping[int, Place]
    complain: bool = False
    raw_lines: tuple[int, ...] = ()


def compile(
    policy: Loaded | Policy, phase: PhaseName, layout: Layout | None = None, *, abi: Abi | None = None
) -> Profile:
    """The profile of a phase: a pure function of these four; `abi` None: that of the parser here.

    With a bare Policy places have no lines. Raises PolicyError for a path that no profile can name.
    """
    place = _places(policy)
    asked = policy if isinstance(policy, Policy) else policy.policy
    wanted = abis.detect() if abi is None else abi
    complain = asked.mode == "observe"
    try:
        body = list(_body(asked, phase, layout or Layout(), wanted))
    except NameRefusedError as error:
        where, message = next(unnameable(asked), (("filesystem",), str(error)))
        raise PolicyError.at(place(where), message, NAME_FIX) from error
    head = [f"abi <abi/{wanted.name}>,", ""]
    flags = ", ".join((*FLAGS, *(["complain"] if complain else [])))
    said = "\n".join([*head, flags, *(line.text for line in body)])
    name = PREFIX + hashlib.sha256(said.encode()).hexdigest()[:NAME_DIGITS]
    rows = [
        *head,
        f'profile "{name}" flags=({flags}) {{',
        *(f"  {line.text}".rstrip() for line in body),
        "}",
        "",
    ]
    text = "\n".join(rows)
    sources = {number: place(line.where) for number, line in enumerate(body, len(head) + 2) if line.where}
    own = tuple(n for n, line in enumerate(body, len(head) + 2) if line.where[-2:-1] == ("raw",))
    return Profile(name, text, hashlib.sha256(text.encode()).hexdigest(), sources, complain, own)


def _body(policy: Policy, phase: PhaseName, layout: Layout, abi: Abi) -> Iterator[Line]:
    yield Line("# Capabilities, sockets, processes; what is not named is refused, mounting with it.")
    yield from others.lines(policy, phase, abi)
    yield Line("")
    yield Line("# Files. A denial wins over every allowance.")
    yield from _once(files.lines(policy, phase, layout))
    own = list(raw.lines(policy, phase))
    if own:
        yield Line("")
        yield Line("# apparmor.raw")
        yield from own


def _once(lines: Iterator[Line]) -> Iterator[Line]:
    """Two denials may hold the same folder; the first that asked for it is named."""
    seen: set[str] = set()
    for line in lines:
        if line.text not in seen:
            seen.add(line.text)
            yield line


def _places(policy: Loaded | Policy) -> Callable[[Where], Place]:
    if isinstance(policy, Policy):
        name = policy.name
        return lambda where: Place(name)
    return policy.place


def unnameable(policy: Policy) -> Iterator[tuple[Where, str]]:
    """Paths of the policy that no profile can name, by where they stand, and why."""
    found = [(rule.path, rule.where) for rule in protected.rules(policy)]
    found += [
        (canonical(to_bytes(path)), ("filesystem", "workspace", index))
        for index, path in enumerate(policy.filesystem.workspace)
    ]
    for index, rule in enumerate(policy.filesystem.files):
        found += files.paths_of(rule, index)
    for path, where in found:
        try:
            literal(path)
        except NameRefusedError as error:
            yield where, f"`{to_text(path)}`: {error}"
