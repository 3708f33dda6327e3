"""Asking a compiled profile what it says of a path, as the kernel does (security/apparmor/match.c, file.c).

A binary profile is a stream of typed fields (policy_unpack.c) in which each automaton is a blob `aadfa`: the
compressed tables of a deterministic automaton over bytes. The profile's last one is that of files. What a
state accepts are the permissions of the file's owner and of others, and which of them are logged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

MAGIC: Final = struct.pack(">I", 0x1B5E783D)
_BLOB_NAME: Final = b"\x04\x06\x00aadfa\x00\x06"
_START: Final = 1
_DIFF_ENCODED: Final = 0x80000000
_INDEX: Final = 0xFFFFFF
_TYPES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_ACCEPT, _BASE, _CHECK, _DEFAULT, _CLASSES, _ACCEPT2, _NEXT = 1, 2, 3, 4, 5, 7, 8
_OTHERS_SHIFT: Final = 14
_QUIET_SHIFT: Final = 7
_BITS: Final = {"x": 0x1, "w": 0x2, "r": 0x4, "a": 0x8, "l": 0x10, "k": 0x20, "m": 0x40}

Table = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a state allows the file's owner and everyone else (letters of `rwaxlkm`); what is logged though it
    is allowed, and what is refused without a word."""

    owner: frozenset[str]
    other: frozenset[str]
    audited: frozenset[str]
    quiet: frozenset[str]

    @property
    def allowed(self) -> frozenset[str]:
        """What everyone may."""
        return self.owner & self.other


class Automaton:
    """The automaton of files of one compiled profile. ValueError for bytes that hold none."""

    def __init__(self, binary: bytes) -> None:
        self._tables = _tables(_last_blob(binary))

    def permissions(self, path: bytes) -> Permissions:
        """What is said of `path`, the name that the kernel gives an object."""
        return self._accepted(self._walk(_START, path))

    def link(self, name: bytes, target: bytes, *, own: bool) -> bool:
        """Whether a hard link `name` to `target` may be made, by who owns the target or (`own` false) not.

        The pair of both must be allowed, and where the pair's state says so (the bit that is `k` elsewhere),
        the name may allow nothing that the target does not (profile_path_link of file.c).
        """
        state = self._walk(_START, name)
        named = _whose(self._accepted(state), own)
        pair = _whose(self._accepted(self._walk(self._walk(state, b"\0"), target)), own)
        if "l" not in named or "l" not in pair:
            return False
        return "k" not in pair or named - {"l"} <= _whose(self.permissions(target), own)

    def _walk(self, state: int, text: bytes) -> int:
        classes = self._tables.get(_CLASSES)
        for byte in text:
            state = self._step(state, byte if classes is None else classes[byte])
        return state

    def _step(self, state: int, byte: int) -> int:
        while True:
            base = self._tables[_BASE][state]
            place = (base & _INDEX) + byte
            if self._tables[_CHECK][place] == state:
                return self._tables[_NEXT][place]
            state = self._tables[_DEFAULT][state]
            if not base & _DIFF_ENCODED:
                return state

    def _accepted(self, state: int) -> Permissions:
        allow, audit = self._tables[_ACCEPT][state], self._tables[_ACCEPT2][state]
        both = audit | audit >> _OTHERS_SHIFT
        return Permissions(
            _letters(allow), _letters(allow >> _OTHERS_SHIFT), _letters(both), _letters(both >> _QUIET_SHIFT)
        )


def _whose(found: Permissions, own: bool) -> frozenset[str]:
    return found.owner if own else found.other


def _letters(bits: int) -> frozenset[str]:
    return frozenset(letter for letter, bit in _BITS.items() if bits & bit)


def _last_blob(binary: bytes) -> bytes:
    at = binary.rfind(_BLOB_NAME)
    if at < 0:
        raise ValueError("no automaton in these bytes")
    start = at + len(_BLOB_NAME)
    (size,) = struct.unpack_from("<I", binary, start)
    blob = binary[start + 4 : start + 4 + size]
    magic = blob.find(MAGIC)
    if magic < 0:
        raise ValueError("no automaton in these bytes")
    return blob[magic:]


def _tables(blob: bytes) -> dict[int, Table]:
    (header,) = struct.unpack_from(">I", blob, 4)
    found: dict[int, Table] = {}
    at = header
    while at + 12 <= len(blob):
        number, width, high, low = struct.unpack_from(">HHII", blob, at)
        if width not in _TYPES:
            break
        count = low * max(high, 1)
        found[number] = struct.unpack_from(f">{count}{_TYPES[width]}", blob, at + 12)
        at += (12 + count * width + 7) & ~7
    return found
