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


Word = str | bytes | int
_HEAD, _LENGTH = struct.Struct("<HH"), struct.Struct("<I")
NO_SLOT = -1


@dataclass(slots=True)
class Specification:
    """Operations in order; each method adds one."""

    parts: list[bytes] = field(default_factory=list)

    def add(self, op: Op, *words: Word) -> None:
        """Any operation; numbers travel as decimal text."""
        raw = [_HEAD.pack(op, len(words))]
        for word in words:
            text = b"%d" % word if isinstance(word, int) else os.fsencode(word)
            raw += [_LENGTH.pack(len(text)), text, b"\0"]
        self.parts.append(b"".join(raw))

    def mount(self, kind: str, source: str, target: str, flags: int = 0, data: str = "") -> None:
        """mount(2)."""
        self.add(Op.MOUNT, kind, source, target, flags, data)

    def folder(self, path: str, mode: int = 0o755, owner: int = 0) -> None:
        """A folder, where there is nothing yet."""
        self.add(Op.MKDIR, path, mode, owner, owner)

    def tree(self, slot: int, source: str, attributes: int = 0, mapping: int = NO_SLOT) -> None:
        """Keep a detached copy of the mount at `source`, with its ids mapped by the namespace in a slot."""
        self.add(Op.TREE, slot, source, attributes, mapping)

    def place(self, slot: int, target: str) -> None:
        """Attach a detached tree."""
        self.add(Op.PLACE, slot, target)

    def bytes(self) -> bytes:
        """The encoded operations."""
        return b"".join(self.parts)

    def describe(self, index: int) -> str:
        """One operation for an error message."""
        if index >= len(self.parts):
            return "clone"
        raw, offset = self.parts[index], _HEAD.size
        code, count = _HEAD.unpack_from(raw)
        words = [Op(code).name.lower()]
        for _ in range(count):
            length = _LENGTH.unpack_from(raw, offset)[0]
            offset += _LENGTH.size
            words.append(raw[offset : offset + min(length, 80)].decode("utf-8", "replace"))
            offset += length + 1
        return " ".join(words)
