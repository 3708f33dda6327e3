"""Protected inodes, learned from events: a hard link, or a moved file, stays what it was.

An inode is named by (device, generation, number) as the kernel program sees it. Numbers are used again: an
inode that is created anew under an unprotected name is forgotten from that event on.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import Codes, Mask
from invigilator.ebpf.events import Records

KNOWN_MAX = 1 << 16
CHANGES_MAX = 16
"""Changes of class kept of one inode."""

Words = npt.NDArray[np.uint64]


class Identities:
    """The protected inodes of one sandbox, each with its class from an event on."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._mixed: Words = np.empty(0, np.uint64)

    def learn(self, volume: Words, number: Words, seq: Words, cls: Codes) -> None:
        """Take in what one batch tells: inodes (see `words`) are of class `cls`, 0 for none, from events
        `seq` on."""
        keep = number != 0
        if not keep.any():
            return
        volume, number, cls, seq = volume[keep], number[keep], cls[keep], seq[keep]
        order = np.lexsort((seq, volume, number))
        volume, number, cls, seq = volume[order], number[order], cls[order], seq[order]
        changed = np.ones(len(order), np.bool_)
        changed[1:] = (volume[1:] != volume[:-1]) | (number[1:] != number[:-1]) | (cls[1:] != cls[:-1])
        picked = np.flatnonzero(changed)
        for at in picked[np.argsort(seq[picked], kind="stable")].tolist():
            self._add((int(volume[at]), int(number[at])), int(seq[at]), int(cls[at]))
        self._mixed = _mixed_keys(self._known)

    def among(self, r: Records, side: str = "") -> Mask:
        """Which events' inodes are perhaps known (cheap, may say yes in vain), shape (n,)."""
        if not len(self._mixed):
            return np.zeros(len(r), np.bool_)
        volume, number = words(r, side)
        found: Mask = np.isin(_mix(volume, number), self._mixed) & (number != 0)
        return found

    def classes(self, r: Records, side: str = "") -> Codes:
        """The class of each event's inode just before the event, shape (n,); 0: none."""
        found = np.zeros(len(r), np.uint8)
        rows = np.flatnonzero(self.among(r, side))
        if not len(rows):
            return found
        volume, number = words(r[rows], side)
        _, volumes = np.unique(volume, return_inverse=True)
        _, numbers = np.unique(number, return_inverse=True)
        key = volumes.astype(np.int64) << 32 | numbers
        order = np.argsort(key, kind="stable")
        borders = [0, *(np.flatnonzero(np.diff(key[order])) + 1).tolist(), len(rows)]
        for start, stop in pairwise(borders):
            part = rows[order[start:stop]]
            at = order[start]
            changes = self._known.get((int(volume[at]), int(number[at])))
            if changes:
                since = np.array([c[0] for c in changes], np.uint64)
                code = np.array([0, *(c[1] for c in changes)], np.uint8)
                found[part] = code[np.searchsorted(since, r["seq"][part], side="left")]
        return found

    def _add(self, inode: tuple[int, int], seq: int, cls: int) -> None:
        changes = self._known.get(inode)
        if changes is None:
            if not cls or len(self._known) >= KNOWN_MAX:
                return
            changes = self._known[inode] = []
        if len(changes) < CHANGES_MAX and (not changes or changes[-1][1] != cls):
            changes.append((seq, cls))


def words(r: Records, side: str) -> tuple[Words, Words]:
    """(device and generation, inode number) of each event's object; `side` "" or "2"."""
    volume = r["dev" + side].astype(np.uint64) << np.uint64(32) | r["gen" + side]
    return volume, r["ino" + side]


def _mix(volume: Words, number: Words) -> Words:
    mixed: Words = volume * np.uint64(0x9E3779B97F4A7C15) ^ number
    return mixed


def _mixed_keys(known: dict[tuple[int, int], list[tuple[int, int]]]) -> Words:
    if not known:
        return np.empty(0, np.uint64)
    pairs = np.array(list(known), np.uint64)
    return np.unique(_mix(pairs[:, 0], pairs[:, 1]))
