"""Events kept beyond their batch, for verdicts that later events decide."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import Codes, Hits, Intent, Mask, Outcome, Rows, Use
from invigilator.ebpf.events import STRING_FIELDS, EventBatch, Records

if TYPE_CHECKING:
    from invigilator.detectors.scene import Scene


@dataclass(frozen=True, slots=True)
class Kept:
    """Copies of events, with the phase and the outcome of each."""

    batch: EventBatch
    phase: Codes
    outcome: Codes

    def hits(
        self,
        rows: Rows,
        confidence: float | npt.NDArray[np.float64],
        *,
        outcome: Outcome | Codes | None = None,
        intent: Intent | Codes = Intent.DELIBERATE,
        use: Use | Codes = Use.NONE,
    ) -> Hits:
        """Hold kept events against the sandbox after all; scalars stand for all of them."""
        found = self.outcome[rows] if outcome is None else outcome
        return Hits.of(self.batch, rows, self.phase[rows], found, confidence, intent, use)


class Firsts:
    """The first event of each key, in `seq` order, up to `most` keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: dict[Hashable, int] = {}
        self._parts: list[Kept] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, scene: Scene, rows: Rows, keys: Sequence[Hashable], which: Rows) -> None:
        """Take in events `rows` (ascending), of which `which` says each one's key."""
        if not len(rows):
            return
        first = np.full(len(keys), len(rows), np.intp)
        np.minimum.at(first, which, np.arange(len(rows)))
        new: list[int] = []
        for at in np.argsort(first, kind="stable").tolist():
            if keys[at] not in self._places and len(self._places) < self._most:
                self._places[keys[at]] = len(self._places)
                new.append(int(rows[first[at]]))
        if new:
            self._parts.append(keep(scene, np.array(new, np.intp)))

    def place(self, key: Hashable) -> int | None:
        """The number of a key, in order of first events; None where it is not kept."""
        return self._places.get(key)

    def keys(self) -> list[Any]:
        """The keys, in order of first events."""
        return list(self._places)

    def records(self) -> Records:
        """The kept events, in order."""
        return np.concatenate([part.batch.records for part in self._parts])

    def phases(self) -> Codes:
        """The phase of each kept event."""
        return np.concatenate([part.phase for part in self._parts])

    def outcomes(self) -> Codes:
        """The outcome of each kept event."""
        return np.concatenate([part.outcome for part in self._parts])

    def hits(
        self,
        mask: Mask,
        confidence: npt.NDArray[np.float64],
        outcome: Codes | None = None,
        intent: Intent = Intent.DELIBERATE,
    ) -> Iterator[Hits]:
        """Hold the kept events where `mask` is true against the sandbox."""
        start = 0
        for part in self._parts:
            stop = start + len(part.batch)
            rows = np.flatnonzero(mask[start:stop])
            if len(rows):
                found = None if outcome is None else outcome[start:stop][rows]
                yield part.hits(rows, confidence[start:stop][rows], outcome=found, intent=intent)
            start = stop


def keep(scene: Scene, rows: Rows) -> Kept:
    """Copies of events of a scene."""
    return Kept(compact(scene.batch, rows), scene.phase[rows], scene.outcome[rows])


def compact(batch: EventBatch, rows: Rows) -> EventBatch:
    """Copies of the events `rows` with only the strings that they use."""
    records = batch.records[rows]
    codes: dict[int, int] = {0: 0}
    for name in STRING_FIELDS:
        used, inverse = np.unique(records[name], return_inverse=True)
        local = np.array([codes.setdefault(int(code), len(codes)) for code in used], np.uint32)
        records[name] = local[inverse]
    return EventBatch(records, [batch.strings[code] for code in codes])
