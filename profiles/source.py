"""Policy text → a tree of nodes that know their place; hostile YAML is refused here.

Of YAML a policy needs mappings, lists and plain values. Anchors and aliases (a few lines of which can stand
for gigabytes), tags, several documents and repeated keys are refused. `yes`, `no`, `on` and `off` are words,
not booleans as in YAML 1.1.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import yaml

from invigilator.profiles.errors import Place, PolicyError, Problem

FILE_MAX_BYTES = 64 << 10
DEPTH_MAX = 16
VALUES_MAX = 5000
INTEGER_DIGITS_MAX = 15
"""Longer integers are no longer exact in JSON (2^53 has 16 digits)."""

_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)

_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""libyaml's parser takes a tenth of the time."""

Key = str | int
Loc = Sequence[Key]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A plain value; `block`: text that begins on the line after its place (`|`)."""

    value: str | int | float | bool | None
    place: Place
    plain: bool = True
    block: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """A sequence."""

    items: tuple[Node, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping; `places` has the place of each key."""

    items: dict[str, Node]
    places: dict[str, Place]
    place: Place


Node = Union[Scalar, Listing, Table]  # noqa: UP007 - a forward reference needs it


def read_file(path: Path) -> str:
    """The text of a policy file. Raises PolicyError for what is no readable UTF-8 file of sane size."""
    place = Place(str(path))
    try:
        raw = _read(path, place)
    except OSError as error:
        fix = "check the path and its permissions"
        raise PolicyError.at(place, f"cannot be read: {error.strerror}", fix) from error
    if len(raw) > FILE_MAX_BYTES:
        raise PolicyError.at(place, f"longer than {FILE_MAX_BYTES} bytes", "split it by `extends`")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        fix = "save the file as UTF-8; in a path write the byte as \\xNN"
        raise PolicyError.at(Place(str(path), line, column), "this byte is not UTF-8", fix) from error


def _read(path: Path, place: Place) -> bytes:
    if "\0" in str(path):
        raise PolicyError.at(place, "a path cannot hold a NUL byte", "name a YAML file")
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PolicyError.at(place, "this is no regular file", "name a YAML file")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(FILE_MAX_BYTES + 1)
    finally:
        os.close(fd)


def parse(text: str, file: str) -> Table:
    """The tree of a policy's text; `file` names it in errors. Raises PolicyError."""
    if len(text) > FILE_MAX_BYTES:
        raise PolicyError.at(Place(file), f"longer than {FILE_MAX_BYTES} characters", "split it by `extends`")
    try:
        root = _document(text, file)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, file) from error
    except yaml.YAMLError as error:
        message = str(error).splitlines()[0]
        raise PolicyError.at(Place(file, 1, 1), f"no YAML: {message}", "remove the character") from error
    except (ValueError, OverflowError) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError.at(
            Place(file, 1, 1), f"no YAML: {error}", "check escapes in quoted text"
        ) from error
    if not isinstance(root, Table):
        raise PolicyError.at(root.place, "a policy is a mapping", "begin with `version: 1`")
    return root


def _document(text: str, file: str) -> Node:
    try:
        return _Composer(text, file, _LOADER).document()
    except yaml.YAMLError:
        # PyYAML's own parser says better what is wrong.
        return _Composer(text, file, yaml.SafeLoader).document()


def plain(node: Node) -> object:
    """The values of a tree, without places."""
    if isinstance(node, Table):
        return {key: plain(item) for key, item in node.items.items()}
    if isinstance(node, Listing):
        return [plain(item) for item in node.items]
    return node.value


def child(node: Node, step: Key) -> Node | None:
    """The value at a key or an index; None where there is none."""
    if isinstance(node, Table) and isinstance(step, str):
        return node.items.get(step)
    if isinstance(node, Listing) and isinstance(step, int) and step < len(node.items):
        return node.items[step]
    return None


def locate(root: Node, loc: Loc, *, key: bool = False) -> Place:
    """Where `loc` (keys and indices) stands; the nearest that exists around it where it does not.

    `key`: the place of the last key itself rather than of its value.
    """
    node, place = root, root.place
    for step in loc:
        inside = child(node, step)
        if inside is None:
            continue
        place = node.places[str(step)] if key and isinstance(node, Table) else inside.place
        node = inside
    return place


def _syntax_error(error: yaml.MarkedYAMLError, file: str) -> PolicyError:
    mark = error.problem_mark or error.context_mark
    place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file, 1, 1)
    said = ", ".join(part for part in (error.context, error.problem) if part)
    fix = "indent with spaces" if "'\\t'" in said else "check indentation, quotes and colons on this line"
    return PolicyError.at(place, f"no YAML: {said}", fix)


class _Composer:
    """Builds nodes from PyYAML's events as they come, so that a limit stops the parser too."""

    def __init__(self, text: str, file: str, loader: Any) -> None:
        self._file = file
        self._values = 0
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=loader))

    def document(self) -> Node:
        root: Node | None = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._error(event, "a second document begins here", "keep one policy in a file")
                root = self._node(next(self._events), 0)
        if root is None:
            raise PolicyError.at(Place(self._file, 1, 1), "the file is empty", "begin with `version: 1`")
        return root

    def _node(self, event: yaml.Event, depth: int) -> Node:
        self._refuse_features(event, depth)
        self._values += 1
        if self._values > VALUES_MAX:
            raise self._error(event, f"more than {VALUES_MAX} values", "split the file by `extends`")
        if isinstance(event, yaml.MappingStartEvent):
            return self._table(event, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._listing(event, depth)
        assert isinstance(event, yaml.ScalarEvent)
        return self._scalar(event)

    def _table(self, start: yaml.Event, depth: int) -> Table:
        items: dict[str, Node] = {}
        places: dict[str, Place] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            self._refuse_features(event, depth)
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error(event, "a key must be a word", "write `key: value`")
            key, place = event.value, self._place(event)
            if key in items:
                message = f"`{key}` stands here twice (first in line {places[key].line})"
                raise PolicyError.at(place, message, "keep one of the two")
            places[key] = place
            items[key] = self._node(next(self._events), depth + 1)
        return Table(items, places, self._place(start))

    def _listing(self, start: yaml.Event, depth: int) -> Listing:
        items: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return Listing(tuple(items), self._place(start))

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar:
        unquoted = not event.style  # None, or in libyaml's events ""
        value = self._value(event) if unquoted else event.value
        if isinstance(value, str) and any(0xD800 <= ord(c) <= 0xDFFF for c in value):
            raise self._error(
                event, "half of a surrogate pair is no character", "in a path write bytes as \\xNN"
            )
        return Scalar(value, self._place(event), unquoted, event.style == "|")

    def _value(self, event: yaml.ScalarEvent) -> str | int | float | bool | None:
        text: str = event.value
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return text.lower() == "true"
        if _INTEGER.fullmatch(text):
            if len(text.lstrip("+-")) > INTEGER_DIGITS_MAX:
                raise self._error(
                    event, "this number is too long", f"use at most {INTEGER_DIGITS_MAX} digits"
                )
            return int(text)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _refuse_features(self, event: yaml.Event, depth: int) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise self._error(event, "anchors and aliases are not read", "write the value out here")
        if getattr(event, "tag", None):
            raise self._error(event, f"the tag `{getattr(event, 'tag', '')}` is not read", "remove it")
        if depth > DEPTH_MAX:
            raise self._error(
                event, f"nested deeper than {DEPTH_MAX} levels", "a policy needs no more than 5"
            )

    def _place(self, event: yaml.Event) -> Place:
        mark = event.start_mark
        return Place(self._file, mark.line + 1, mark.column + 1) if mark else Place(self._file, 1, 1)

    def _error(self, event: yaml.Event, message: str, fix: str) -> PolicyError:
        return PolicyError([Problem(self._place(event), message, fix)])
