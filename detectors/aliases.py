"""Names that the sandbox made for protected places: links to them, hard and symbolic, and moves of them.

The kernel gives the canonical path of what was reached; where a call failed, or took names only (unlink,
rename), there is just what the process said, and that may lead through a link of its own.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from invigilator.detectors.base import Mask, Rows
from invigilator.ebpf.events import EventBatch, Kind
from invigilator.profiles.paths import canonical

NAMES_MAX = 512
"""Aliases kept of one sandbox; what goes through later ones shows in the end-of-phase comparison."""
CHANGES_MAX = 16
"""Changes kept of one alias."""

Timeline = list[tuple[int, bytes | None]]
"""(seq, where the name led after that event; None: nowhere special), ascending."""

_MAKES = (Kind.SYMLINK, Kind.RENAME, Kind.LINK)
_ENDS = (Kind.UNLINK, Kind.RENAME, Kind.OPEN)


class Aliases:
    """The aliases of one sandbox.

    `near(path)`: a protected place lies at, below or above the path. `inside(path)`: the path itself has a
    class, so that it needs no alias.
    """

    def __init__(self, near: Callable[[bytes], bool], inside: Callable[[bytes], bool]) -> None:
        self.near = near
        self.inside = inside
        self._names: dict[bytes, Timeline] = {}

    def __len__(self) -> int:
        return len(self._names)

    def observe(self, batch: EventBatch, created: Mask) -> None:
        """Learn from the next events; `created`, shape (n,): the call made the object."""
        r = batch.records
        done = r["result"] >= 0
        makes = np.flatnonzero(done & np.isin(r["kind"], _MAKES))
        if len(makes) or self._names:
            ends = np.flatnonzero(done & np.isin(r["kind"], _ENDS) & ((r["kind"] != Kind.OPEN) | created))
            _Walk(self, batch, makes, ends).run()

    def lead(self, path: bytes, seq: int, *, follow: bool = True) -> bytes:
        """Where `path` leads just before event `seq`; `follow` a link that is its last component."""
        steps = self.timeline(path, follow=follow)
        now = path
        for since, target in steps:
            if since < seq:
                now = target if target is not None else path
        return now

    def timeline(self, path: bytes, *, follow: bool = True) -> Timeline:
        """Where `path` led from which event on; empty where no alias is part of it."""
        end = len(path) if follow else path.rfind(b"/")
        while end > 0:
            if changes := self._names.get(path[:end]):
                rest = path[end:]
                return [(seq, None if to is None else canonical(to + rest)) for seq, to in changes]
            end = path.rfind(b"/", 0, end)
        return []

    def names(self) -> list[bytes]:
        """Every alias."""
        return list(self._names)

    def add(self, name: bytes, seq: int, target: bytes | None) -> bool:
        """Remember; whether there was room."""
        changes = self._names.get(name)
        if changes is None:
            if target is None or len(self._names) >= NAMES_MAX:
                return False
            changes = self._names[name] = []
        if len(changes) >= CHANGES_MAX or (changes and changes[-1][1] == target):
            return False
        changes.append((seq, target))
        return True


class _Walk:
    """One batch's links and moves, taken in `seq` order; only those near an alias are looked at."""

    def __init__(self, aliases: Aliases, batch: EventBatch, makes: Rows, ends: Rows) -> None:
        self._aliases = aliases
        self._batch = batch
        self._makes = self._by_source(makes)
        self._end_rows = ends
        self._sources = sorted(self._makes)
        self._queue: list[tuple[int, int, bool]] = []
        self._queued: set[tuple[int, bool]] = set()

    def run(self) -> None:
        for source in self._sources:
            if self._aliases.near(source):
                self._enqueue(self._makes[source], False)
        for name in self._aliases.names():
            self._enqueue_near(name)
        while self._queue:
            seq, row, ending = heapq.heappop(self._queue)
            if ending:
                for name in self._ended_by(row):
                    self._aliases.add(name, seq, None)
            else:
                self._make(seq, row)

    def _make(self, seq: int, row: int) -> None:
        name, source = self._pair(row)
        target = self._aliases.lead(source, seq)
        name = self._aliases.lead(name, seq, follow=False)
        special = name != target and self._aliases.near(target) and not self._aliases.inside(name)
        if special and self._aliases.add(name, seq, target):
            self._enqueue_near(name, seq)

    def _enqueue_near(self, name: bytes, after: int = 0) -> None:
        self._enqueue(self._ends.get(name, []), True, after)
        below = name + b"/"
        at = bisect_left(self._sources, name)
        while at < len(self._sources) and self._sources[at].startswith(name):
            source = self._sources[at]
            if source == name or source.startswith(below):
                self._enqueue(self._makes[source], False, after)
            at += 1

    def _enqueue(self, rows: list[int], ending: bool, after: int = 0) -> None:
        for row in rows:
            seq = int(self._batch.records["seq"][row])
            if seq > after and (row, ending) not in self._queued:
                self._queued.add((row, ending))
                heapq.heappush(self._queue, (seq, row, ending))

    def _by_source(self, rows: Rows) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for row in self._distinct(rows):
            _, source = self._pair(row)
            found.setdefault(source, []).append(row)
        return found

    @cached_property
    def _ends(self) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for row in self._distinct(self._end_rows):
            for name in self._ended_by(row):
                found.setdefault(name, []).append(row)
        return found

    def _distinct(self, rows: Rows) -> Iterator[int]:
        """The first `CHANGES_MAX` rows of every distinct (kind, path, path2)."""
        r = self._batch.records[rows]
        key = np.stack([r["kind"].astype(np.uint32), r["path"], r["path2"]], axis=1)
        order = np.lexsort((rows, key[:, 2], key[:, 1], key[:, 0]))
        ordered = key[order]
        new = np.ones(len(rows), np.bool_)
        new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        starts = np.flatnonzero(new)
        rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
        return iter(rows[order[rank < CHANGES_MAX]].tolist())

    def _pair(self, row: int) -> tuple[bytes, bytes]:
        """(the new name, where it leads), both canonical by their text."""
        path, path2 = canonical(self._batch.text("path", row)), self._batch.text("path2", row)
        if self._batch.records["kind"][row] == Kind.SYMLINK:
            folder = path.rpartition(b"/")[0]
            return path, canonical(path2 if path2.startswith(b"/") else folder + b"/" + path2)
        return canonical(path2), path

    def _ended_by(self, row: int) -> tuple[bytes, ...]:
        path = canonical(self._batch.text("path", row))
        if self._batch.records["kind"][row] == Kind.RENAME:
            return path, canonical(self._batch.text("path2", row))
        return (path,)
