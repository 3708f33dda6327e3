"""Names that the sandbox made for protected places: links to them, hard and symbolic, and moves of them.

The kernel gives the canonical path of what was reached; where a call failed, or took names only (unlink,
rename), there is just what the process said, and that may lead through a link of its own.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, KeysView, Sequence
from functools import cached_property

import numpy as np

from invigilator.detectors.base import Mask, Rows
from invigilator.detectors.touches import is_kind
from invigilator.ebpf.events import EventBatch, Kind
from invigilator.profiles.paths import canonical

NAMES_MAX = 512
"""Aliases kept of one sandbox; what goes through later ones shows in the end-of-phase comparison."""
WAITING_MAX = 4096
"""Symbolic links kept that lead nowhere special yet: what they lead to may become an alias."""
CHANGES_MAX = 16
"""Changes kept of one alias."""
TIMELINE_MAX = 255
"""Changes heeded of one path."""

Timeline = list[tuple[int, bytes | None]]
"""(seq, where the name led after that event; None: nowhere special), ascending."""

SYMLINK, RENAME = int(Kind.SYMLINK), int(Kind.RENAME)
_MAKES = (Kind.SYMLINK, Kind.RENAME, Kind.LINK)
_ENDS = (Kind.UNLINK, Kind.RENAME, Kind.OPEN)


class Aliases:
    """The aliases of one sandbox.

    `near(path, seq)`: a protected place, or a canary planted before event `seq`, lies at, below or above the
    path. `inside(path)`: the path itself has a class, so that it needs no alias.
    """

    def __init__(self, near: Callable[[bytes, int], bool], inside: Callable[[bytes], bool]) -> None:
        self.near = near
        self.inside = inside
        self._names: dict[bytes, Timeline] = {}
        self._waiting: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._names)

    def observe(self, batch: EventBatch, paths: Sequence[bytes], created: Mask) -> None:
        """Learn from the next events. `paths`: of each string, the path canonical by its text; `created`,
        shape (n,): the call made the object."""
        r = batch.records
        done = r["result"] >= 0
        makes = np.flatnonzero(done & is_kind(r, _MAKES))
        if len(makes) or self._names or self._waiting:
            ends = np.flatnonzero(done & is_kind(r, _ENDS) & ((r["kind"] != Kind.OPEN) | created))
            _Walk(self, batch, paths, makes, ends).run()

    def lead(self, path: bytes, seq: int, *, follow: bool = True) -> bytes:
        """Where `path` leads just before event `seq`; `follow` a link that is its last component."""
        now = path
        for since, target in self.timeline(path, follow=follow) if self._names else ():
            if since < seq:
                now = target if target is not None else path
        return now

    def timeline(self, path: bytes, *, follow: bool = True) -> Timeline:
        """Where `path` led from which event on, the longest alias in it deciding; empty where it has none."""
        if not self._names:
            return []
        found: list[tuple[Timeline, bytes]] = []
        end = len(path) if follow else path.rfind(b"/")
        while end > 0:
            if changes := self._names.get(path[:end]):
                found.append((changes, path[end:]))
            end = path.rfind(b"/", 0, end)
        points = sorted({seq for changes, _ in found for seq, _ in changes})
        return [(seq, _leading(found, seq)) for seq in points[:TIMELINE_MAX]]

    def names(self) -> KeysView[bytes]:
        """Every alias."""
        return self._names.keys()

    def wait(self, name: bytes, target: bytes) -> bool:
        """Remember a link that leads nowhere special; whether there was room."""
        if name not in self._waiting and len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting[name] = target
        return True

    def forget(self, name: bytes) -> bytes | None:
        """The link waits no more; where it led to."""
        return self._waiting.pop(name, None)

    def waiting(self) -> KeysView[bytes]:
        """Every link that leads nowhere special."""
        return self._waiting.keys()

    def waiting_for(self, name: bytes) -> list[tuple[bytes, bytes]]:
        """(link, target) of those that lead to `name` or below it."""
        below = name + b"/"
        return [(link, to) for link, to in self._waiting.items() if to == name or to.startswith(below)]

    @property
    def is_full(self) -> bool:
        """Whether no further name can be kept."""
        return len(self._names) >= NAMES_MAX

    def add(self, name: bytes, seq: int, target: bytes | None) -> bool:
        """Remember; whether there was room."""
        changes = self._names.get(name)
        if changes is None:
            if target is None or self.is_full:
                return False
            changes = self._names[name] = []
        if len(changes) >= CHANGES_MAX or (changes and changes[-1][1] == target):
            return False
        changes.append((seq, target))
        return True


def _leading(found: list[tuple[Timeline, bytes]], seq: int) -> bytes | None:
    """Where a path leads from event `seq` on; `found`: each alias in it, longest first, and what follows."""
    for changes, rest in found:
        target = None
        for since, to in changes:
            if since <= seq:
                target = to
        if target is not None:
            return canonical(target + rest)
    return None


class _Walk:
    """One batch's links and moves, taken in `seq` order; only those near an alias are looked at."""

    def __init__(
        self, aliases: Aliases, batch: EventBatch, paths: Sequence[bytes], makes: Rows, ends: Rows
    ) -> None:
        self._aliases = aliases
        self._batch = batch
        self._paths = paths
        self._make_rows = makes
        self._end_rows = ends
        self._queue: list[tuple[int, bool, int]] = []
        self._queued: set[tuple[int, bool]] = set()

    def run(self) -> None:
        last = int(self._batch.records["seq"][-1]) + 1
        kinds = self._batch.records["kind"]
        for source, rows in self._makes.items():
            if self._aliases.near(source, last):
                self._enqueue(rows, False)
            else:
                self._enqueue([row for row in rows if kinds[row] == SYMLINK], False)
        for name in list(self._aliases.names()):
            self._enqueue_near(name)
        for name in self._aliases.waiting() & self._ends.keys():
            self._enqueue(self._ends[name], True)
        while self._queue:
            seq, makes, row = heapq.heappop(self._queue)
            if makes:
                self._make(seq, row)
            else:
                self._end(seq, row)

    def _make(self, seq: int, row: int) -> None:
        name, source = self._pair(row)
        if self._aliases.is_full and name not in self._aliases.names():
            return
        target = self._aliases.lead(source, seq)
        name = self._aliases.lead(name, seq, follow=False)
        if name == target or self._aliases.inside(name):
            return
        if self._aliases.near(target, seq):
            self._name(name, seq, target)
        elif self._batch.records["kind"][row] == SYMLINK and self._aliases.wait(name, source):
            self._enqueue(self._ends.get(name, []), True, seq)

    def _end(self, seq: int, row: int) -> None:
        moved = None
        for name in self._ended_by(row):
            self._aliases.add(name, seq, None)
            moved = self._aliases.forget(name) or moved
        if moved is not None and self._batch.records["kind"][row] == RENAME:
            name = self._pair(row)[0]
            if self._aliases.wait(name, moved):
                self._enqueue(self._ends.get(name, []), True, seq)

    def _name(self, name: bytes, seq: int, target: bytes) -> None:
        """`name` leads to a special place from now on, and so do the links that waited for it."""
        names = [(name, target)]
        while names:
            name, target = names.pop()
            self._aliases.forget(name)
            if not self._aliases.add(name, seq, target):
                continue
            self._enqueue_near(name, seq)
            for link, to in self._aliases.waiting_for(name):
                leads_to = canonical(target + to[len(name) :])
                if link != leads_to and self._aliases.near(leads_to, seq):
                    names.append((link, leads_to))

    def _enqueue_near(self, name: bytes, after: int = 0) -> None:
        self._enqueue(self._ends.get(name, []), True, after)
        below = name + b"/"
        sources = self._sources
        at = bisect_left(sources, name)
        while at < len(sources) and sources[at].startswith(name):
            source = sources[at]
            if source == name or source.startswith(below):
                self._enqueue(self._makes[source], False, after)
            at += 1

    def _enqueue(self, rows: list[int], ending: bool, after: int = 0) -> None:
        for row in rows:
            seq = int(self._batch.records["seq"][row])
            if seq > after and (row, ending) not in self._queued:
                self._queued.add((row, ending))
                heapq.heappush(self._queue, (seq, not ending, row))

    @cached_property
    def _makes(self) -> dict[bytes, list[int]]:
        """Links and moves by where they lead."""
        found: dict[bytes, list[int]] = {}
        for row in self._distinct(self._make_rows):
            found.setdefault(self._pair(row)[1], []).append(row)
        return found

    @cached_property
    def _sources(self) -> list[bytes]:
        return sorted(self._makes)

    @cached_property
    def _ends(self) -> dict[bytes, list[int]]:
        """Events that end a name, by the name."""
        found: dict[bytes, list[int]] = {}
        for row in self._distinct(self._end_rows):
            for name in self._ended_by(row):
                found.setdefault(name, []).append(row)
        return found

    def _distinct(self, rows: Rows) -> Iterator[int]:
        """The first `CHANGES_MAX` rows of every distinct (kind, path, path2)."""
        r = self._batch.records[rows]
        order = np.lexsort((rows, r["path2"], r["path"], r["kind"]))
        columns = [r[name][order] for name in ("kind", "path", "path2")]
        new = np.ones(len(rows), np.bool_)
        new[1:] = np.logical_or.reduce([c[1:] != c[:-1] for c in columns]) if len(rows) else False
        starts = np.flatnonzero(new)
        rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
        return iter(rows[order[rank < CHANGES_MAX]].tolist())

    def _pair(self, row: int) -> tuple[bytes, bytes]:
        """(the new name, where it leads), both canonical by their text."""
        kind, path, path2 = self._batch.records[row][["kind", "path", "path2"]].item()
        if kind == SYMLINK:
            name, text = self._paths[path], self._batch.strings[path2]
            folder = name.rpartition(b"/")[0]
            return name, canonical(text if text.startswith(b"/") else folder + b"/" + text)
        return self._paths[path2], self._paths[path]

    def _ended_by(self, row: int) -> tuple[bytes, ...]:
        kind, path, path2 = self._batch.records[row][["kind", "path", "path2"]].item()
        return (self._paths[path], self._paths[path2]) if kind == RENAME else (self._paths[path],)
