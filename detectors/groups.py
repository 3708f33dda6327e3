"""Hits, gathered into what an incident says: one group per (outcome, phase, step) of a detector.

A group counts its proofs, or, where it has none, its signs. Its evidence is the surest and earliest of its
events. Hits that depend on whether their process met the object on a walk are kept by process, folder and
sort of file until they are settled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import BULK, STRONG, Hits, Intent, Rows, Use
from invigilator.detectors.walks import Met, Process, sort_of
from invigilator.ebpf.events import EventBatch
from invigilator.incidents.records import EVIDENCE_MAX
from invigilator.profiles.paths import canonical

UNSETTLED_MAX = 1024
"""Processes and folders of one detector kept apart until settled; later hits stand as they are."""

Describe = Callable[[EventBatch, int], dict[str, Any]]
"""One event as evidence."""


class GroupKey(NamedTuple):
    """What an incident is grouped by, beside sandbox and kind; the codes of `Hits`."""

    outcome: int
    phase: int
    step: int


@dataclass(slots=True)
class Tally:
    """The sum of some hits; evidence is (−confidence, seq, fact), ascending, the first `EVIDENCE_MAX`."""

    count: int = 0
    first_ns: int = (1 << 63) - 1
    last_ns: int = 0
    first_seq: int = (1 << 63) - 1
    last_seq: int = 0
    confidence: float = 0.0
    deliberate: bool = False
    accidental: bool = True
    use: int = Use.NONE
    evidence: list[tuple[float, int, dict[str, Any]]] = field(default_factory=list)

    def add(self, other: Tally, ceiling: float = 1.0) -> None:
        """Take in another's hits, each no surer than `ceiling`."""
        self.count += other.count
        self.first_ns = min(self.first_ns, other.first_ns)
        self.last_ns = max(self.last_ns, other.last_ns)
        self.first_seq = min(self.first_seq, other.first_seq)
        self.last_seq = max(self.last_seq, other.last_seq)
        self.confidence = max(self.confidence, min(other.confidence, ceiling))
        self.deliberate |= other.deliberate
        self.accidental &= other.accidental
        self.use = max(self.use, other.use)
        lowered = [(max(c, -ceiling), seq, fact) for c, seq, fact in other.evidence]
        merged = sorted([*self.evidence, *lowered], key=lambda item: item[:2])
        self.evidence = merged[:EVIDENCE_MAX]

    @property
    def intent(self) -> Intent:
        if self.deliberate:
            return Intent.DELIBERATE
        return Intent.ACCIDENTAL if self.accidental else Intent.UNKNOWN


class Groups:
    """All hits of one detector in one sandbox."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._settled: dict[tuple[GroupKey, bool], Tally] = {}
        self._open: dict[tuple[Process, Process, bytes, bytes], dict[tuple[GroupKey, bool], Tally]] = {}

    def add(self, hits: Hits) -> None:
        """Gather hits; of one detector they come in `seq` order, those of `standing` excepted."""
        r = hits.batch.records[hits.rows]
        if not len(r):
            return
        key, owner = self._keys(hits, r), self._owners(hits, r)
        order = np.lexsort((r["seq"], owner, key))
        edges = np.flatnonzero((np.diff(key[order]) != 0) | (np.diff(owner[order]) != 0)) + 1
        parts = [order[a:b] for a, b in pairwise([0, *edges.tolist(), len(order)])]
        for part in sorted(parts, key=lambda p: int(r["seq"][p[0]])):
            self._add_part(hits, part)

    def settled(self, is_met: Callable[[Met], bool]) -> dict[GroupKey, Tally]:
        """Every group as it stands; changes nothing."""
        bands: dict[tuple[GroupKey, bool], Tally] = {}
        for band, tally in self._settled.items():
            bands.setdefault(band, Tally()).add(tally)
        for owner, tallies in self._open.items():
            first = min(tally.first_seq for tally in tallies.values())
            last = max(tally.last_seq for tally in tallies.values())
            walked = is_met(Met(*owner, first, last))
            for (key, strong), tally in tallies.items():
                band = (key, strong and not walked)
                bands.setdefault(band, Tally()).add(tally, BULK if walked else 1.0)
        return {key: bands.get((key, True)) or bands[key, False] for key, _ in bands}

    def copy(self) -> Groups:
        """The same hits, to which others can be added apart."""
        twin = Groups(self._describe)
        twin._settled = {key: _copied(tally) for key, tally in self._settled.items()}
        twin._open = {
            who: {key: _copied(tally) for key, tally in tallies.items()}
            for who, tallies in self._open.items()
        }
        return twin

    def _keys(self, hits: Hits, r: Any) -> npt.NDArray[np.uint64]:
        strong = hits.confidence >= STRONG
        packed: npt.NDArray[np.uint64] = (
            r["step"].astype(np.uint64) << np.uint64(8)
            | strong.astype(np.uint64) << np.uint64(6)
            | hits.soft.astype(np.uint64) << np.uint64(5)
            | hits.phase.astype(np.uint64) << np.uint64(2)
            | hits.outcome
        )
        return packed

    def _owners(self, hits: Hits, r: Any) -> npt.NDArray[np.int64]:
        """A number for the process, the folder and the sort of each soft hit; 0 for the others."""
        if not hits.soft.any():
            return np.zeros(len(r), np.int64)
        strings = hits.batch.strings
        codes, folder = np.unique(_named(r), return_inverse=True)
        names = [_place(strings[code]) for code in codes.tolist()]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        folder = np.array([numbers[name] for name in names], np.int64)[folder]
        key = np.stack([r["start_ns"].astype(np.int64), r["pid"].astype(np.int64), folder], axis=1)
        _, owner = np.unique(key, axis=0, return_inverse=True)
        return np.where(hits.soft, owner.reshape(-1) + 1, 0)

    def _add_part(self, hits: Hits, part: Rows) -> None:
        first = part[0]
        record = hits.batch.records[hits.rows[first]]
        key = GroupKey(int(hits.outcome[first]), int(hits.phase[first]), int(record["step"]))
        target = self._settled
        if hits.soft[first]:
            process = (int(record["pid"]), int(record["start_ns"]))
            parent = (int(record["ppid"]), int(record["parent_start_ns"]))
            owner = (process, parent, *_place(hits.batch.strings[int(_named(record))]))
            if owner in self._open or len(self._open) < UNSETTLED_MAX:
                target = self._open.setdefault(owner, {})
        band = (key, bool(hits.confidence[first] >= STRONG))
        target.setdefault(band, Tally()).add(self._tally(hits, part))

    def _tally(self, hits: Hits, part: Rows) -> Tally:
        rows = hits.rows[part]
        times = hits.batch.records["time_ns"][rows]
        confidence, intent = hits.confidence[part], hits.intent[part]
        surest = np.lexsort((hits.batch.records["seq"][rows], -confidence))[:EVIDENCE_MAX]
        return Tally(
            count=len(part),
            first_ns=int(times.min()),
            last_ns=int(times.max()),
            first_seq=int(hits.batch.records["seq"][rows].min()),
            last_seq=int(hits.batch.records["seq"][rows].max()),
            confidence=float(confidence.max()),
            deliberate=bool((intent == Intent.DELIBERATE).any()),
            accidental=bool((intent == Intent.ACCIDENTAL).all()),
            use=int(hits.use[part].max()),
            evidence=[
                (
                    -float(confidence[at]),
                    int(hits.batch.records["seq"][rows[at]]),
                    self._describe(hits.batch, int(rows[at])),
                )
                for at in surest.tolist()
            ],
        )


def _named(r: Any) -> Any:
    """The code of each event's object."""
    return np.where(r["path"] != 0, r["path"], r["path2"])


def _place(path: bytes) -> tuple[bytes, bytes]:
    """The folder of an object, and its sort."""
    path = canonical(path)
    return path.rpartition(b"/")[0] or b"/", sort_of(path)


def _copied(tally: Tally) -> Tally:
    twin = Tally()
    twin.add(tally)
    return twin
