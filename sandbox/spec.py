"""What the launcher is told: a list of operations, in the encoding of `launcher/spec.c`.

Paths before `pivot` are relative to the stage, those after it are paths of the sandbox.
"""

from __future__ import annotations

import enum
import os
import struct
from dataclasses import dataclass, field


class Slot(enum.IntEnum):
    """`enum slot` of `launcher.h`."""

    INIT = 0
    ROOT = 1
    PTS = 2
    USER = 3
    MOUNT = 4
    MASKED = 5
    NET = 6
    TABLE = 7
    WORKSPACE_USER = 8
    TREE = 9


class Op(enum.IntEnum):
    """`enum op` of `launcher.h`."""

    STAGE = 1
    MKDIR = 2
    MOUNT = 3
    USERNS = 4
    TREE = 5
    PLACE = 6
    ATTACH = 7
    SYMLINK = 8
    NODE = 9
    FILE = 10
    PIVOT = 11
    HOSTNAME = 12
    OPEN = 13
    SPLIT = 14
    JOIN = 15
    DETACH = 16
    ADDRESS = 17
    TABLE = 18
    ARGUMENT = 32
    ENVIRONMENT = 33
    CWD = 34
    SECCOMP = 35
    SETTINGS = 36
    PROFILE = 37


@dataclass(frozen=True, slots=True)
class Id:
    """A user or group id of the sandbox, so many above its first: known only when the sandbox is."""

    offset: int = 0


Word = str | bytes | int | Id | tuple[str | Id, ...]
_HEAD, _LENGTH = struct.Struct("<HH"), struct.Struct("<I")
_DIGITS = 10
"""Of every id of a sandbox: they begin at `ids.FIRST`."""
NO_SLOT = -1


@dataclass(slots=True)
class Specification:
    """Operations in order; each method adds one. One with an `Id` in it is a form for any sandbox, of which
    `filled` makes one's own."""

    data: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)
    blanks: list[tuple[int, int]] = field(default_factory=list)

    def add(self, op: Op, *words: Word) -> None:
        """Any operation; numbers travel as decimal text."""
        data = self.data
        self.starts.append(len(data))
        data += _HEAD.pack(op, len(words))
        for word in words:
            text = self._text(word, len(data) + _LENGTH.size)
            data += _LENGTH.pack(len(text))
            data += text
            data += b"\0"

    def _text(self, word: Word, at: int) -> bytes:
        if isinstance(word, str):
            return os.fsencode(word)
        if isinstance(word, bytes):
            return word
        if isinstance(word, int):
            return b"%d" % word
        if isinstance(word, Id):
            self.blanks.append((at, word.offset))
            return b"?" * _DIGITS
        text = b""
        for part in word:
            text += self._text(part, at + len(text))
        return text

    def filled(self, first_id: int) -> Specification:
        """The same with the ids of the sandbox whose first one is given."""
        data = bytearray(self.data)
        for at, offset in self.blanks:
            text = b"%d" % (first_id + offset)
            assert len(text) == _DIGITS
            data[at : at + _DIGITS] = text
        return Specification(data, self.starts)

    def mount(self, kind: str, source: str, target: str, flags: int = 0, data: Word = "") -> None:
        """mount(2)."""
        self.add(Op.MOUNT, kind, source, target, flags, data)

    def folder(self, path: str, mode: int = 0o755, owner: int | Id = 0) -> None:
        """A folder, where there is nothing yet."""
        self.add(Op.MKDIR, path, mode, owner, owner)

    def tree(self, slot: int, source: str, attributes: int = 0, mapping: int = NO_SLOT) -> None:
        """Keep a detached copy of the mount at `source`, with its ids mapped by the namespace in a slot."""
        self.add(Op.TREE, slot, source, attributes, mapping)

    def place(self, slot: int, target: str) -> None:
        """Attach a detached tree."""
        self.add(Op.PLACE, slot, target)

    def describe(self, index: int) -> str:
        """One operation for an error message."""
        if index >= len(self.starts):
            return "clone"
        offset = self.starts[index]
        code, count = _HEAD.unpack_from(self.data, offset)
        offset += _HEAD.size
        words = [Op(code).name.lower()]
        for _ in range(count):
            length = _LENGTH.unpack_from(self.data, offset)[0]
            offset += _LENGTH.size
            words.append(self.data[offset : offset + min(length, 80)].decode("utf-8", "replace"))
            offset += length + 1
        return " ".join(words)
