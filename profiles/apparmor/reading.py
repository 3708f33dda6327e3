"""An existing profile's text: its includes resolved, its variables collected, its blocks taken apart.

The text may be anyone's: how deep, how long and from where it includes is bounded, and what cannot be read is
an error with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from invigilator.profiles.apparmor.statements import RuleError, Statement, split
from invigilator.profiles.errors import Place, PolicyError

BASE = Path("/etc/apparmor.d")
FILE_MAX_BYTES = 1 << 20
FILES_MAX = 300
DEPTH_MAX = 16
VALUES_MAX = 256
"""Of one variable."""

_INCLUDE = re.compile(r'#?include\s+(if\s+exists\s+)?(?:<([^>]+)>|"([^"]+)"|(\S+))\s*,?\Z')
_VARIABLE = re.compile(r"@\{(\w+)\}\s*(\+?=)\s*(.*)\Z", re.DOTALL)
_HEAD = re.compile(r'(?:profile\s+)?(?P<name>"[^"]*"|[^\s(]+)(?P<rest>.*)\Z', re.DOTALL)
_FLAGS = re.compile(r"flags\s*=\s*\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Located:
    """A statement and where it is."""

    text: str
    place: Place


@dataclass(slots=True)
class Block:
    """A profile of a file: its name, flags and statements, and the names of blocks inside it, left out."""

    name: str
    flags: frozenset[str]
    place: Place
    statements: list[Located] = field(default_factory=list)
    inner: list[Located] = field(default_factory=list)


@dataclass(slots=True)
class ProfileFile:
    """What a file holds. `variables`: name → its values, in which others may stand."""

    blocks: list[Block] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=dict)


def read(path: Path, base: Path = BASE) -> ProfileFile:
    """The profiles of a file. `base`: where `include <…>` looks. Raises PolicyError."""
    reader = _Reader(base, path.parent)
    reader.take(_content(path, Place(str(path))), str(path), 0)
    if reader.open is not None:
        raise PolicyError.at(reader.open.place, "this block does not close", "end it with `}`")
    return reader.found


class _Reader:
    def __init__(self, base: Path, folder: Path) -> None:
        self._roots = (base, folder)
        self._files = 0
        self._skipping = 0
        self.found = ProfileFile()
        self.open: Block | None = None

    def take(self, text: str, file: str, depth: int) -> None:
        """The statements of a text, in place of the include that named it."""
        self._files += 1
        if depth > DEPTH_MAX or self._files > FILES_MAX:
            fix = "does one include itself?"
            raise PolicyError.at(Place(file, 1, 1), "too many includes, or too deep", fix)
        try:
            for statement in split(text):
                self._statement(statement, Place(file, statement.line + 1, 1), depth)
        except RuleError as error:
            raise PolicyError.at(Place(file, error.line + 1, 1), str(error), error.fix) from error

    def _statement(self, one: Statement, place: Place, depth: int) -> None:
        if one.opens:
            self._opens(one, place)
        elif one.closes:
            self._closes(place)
        elif self._skipping:
            return
        elif match := _INCLUDE.match(one.text):
            self._include(match, place, depth)
        elif match := _VARIABLE.match(one.text):
            self._variable(match, place)
        elif self.open is not None:
            self.open.statements.append(Located(one.text, place))

    def _opens(self, one: Statement, place: Place) -> None:
        match = _HEAD.match(one.text)
        if match is None:
            raise PolicyError.at(place, "a block without a name", "write `profile NAME {`")
        if match["name"] in ("if", "else"):
            raise PolicyError.at(place, "conditions are not read", "keep the branch that holds")
        if self._skipping or self.open is not None:
            self._skipping += 1
            if self.open is not None and self._skipping == 1:
                self.open.inner.append(Located(one.text, place))
            return
        flags = _FLAGS.search(match["rest"])
        words = frozenset(re.split(r"[\s,]+", flags[1].strip())) if flags else frozenset()
        self.open = Block(match["name"].strip('"'), words, place)

    def _closes(self, place: Place) -> None:
        if self._skipping:
            self._skipping -= 1
        elif self.open is not None:
            self.found.blocks.append(self.open)
            self.open = None
        else:
            raise PolicyError.at(place, "`}` closes nothing", "remove it")

    def _variable(self, match: re.Match[str], place: Place) -> None:
        values = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', match[3])]
        kept = self.found.variables.setdefault(match[1], [])
        kept += values if match[2] == "+=" or not kept else []
        if len(kept) > VALUES_MAX:
            raise PolicyError.at(place, f"more than {VALUES_MAX} values", "split the profile")

    def _include(self, match: re.Match[str], place: Place, depth: int) -> None:
        name = match[2] or match[3] or match[4]
        for path in self._found(name, place, optional=bool(match[1])):
            self.take(_content(path, place), str(path), depth + 1)

    def _found(self, name: str, place: Place, *, optional: bool) -> Iterator[Path]:
        """The files that an include means: a folder's are taken in order, as the parser does."""
        for root in self._roots:
            path = (root / name).resolve()
            if not any(path.is_relative_to(one.resolve()) for one in self._roots):
                fix = "copy the file beside the profile"
                raise PolicyError.at(place, f"`{name}` lies outside {root}", fix)
            if path.is_dir():
                yield from sorted(
                    inside for inside in path.iterdir() if inside.is_file() and _is_profile(inside)
                )
                return
            if path.is_file():
                yield path
                return
        if not optional:
            raise PolicyError.at(place, f"`{name}` is not there to include", f"look below {self._roots[0]}")


def _is_profile(path: Path) -> bool:
    ignored = (
        ".dpkg-new",
        ".dpkg-old",
        ".dpkg-dist",
        ".dpkg-bak",
        ".rpmnew",
        ".rpmsave",
        ".orig",
        ".rej",
        "~",
    )
    return not path.name.startswith(".") and not path.name.endswith(ignored) and path.name != "README"


def _content(path: Path, place: Place) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError.at(place, f"`{path}` cannot be read: {error.strerror}", "check the path") from error
    if len(raw) > FILE_MAX_BYTES:
        raise PolicyError.at(place, f"`{path}` is longer than {FILE_MAX_BYTES} bytes", "split it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        fix = "write the byte as \\xNN"
        raise PolicyError.at(Place(str(path), line, 1), "a byte that is not UTF-8", fix) from error
