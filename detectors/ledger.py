"""What changed, by the events and by the end-of-phase comparison, held against each other.

A comparison (DIFF) that no event explains is a change that the sensor did not see. One that repeats what an
earlier phase's comparison said is that phase's change. DIFF may carry the content's hex SHA-256 as `text`;
without it a change of a file that an earlier phase had changed too is told by its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from invigilator.detectors.base import Codes, Hits, Intent, Mask, Outcome, Rows, Use
from invigilator.detectors.touches import CHANGE
from invigilator.ebpf.events import EventBatch, Kind
from invigilator.profiles.paths import canonical

if TYPE_CHECKING:
    from invigilator.detectors.scene import Scene

PATHS_MAX = 1 << 18
"""Changed protected paths remembered; past that every change counts as explained."""
PENDING_PATHS_MAX = 1 << 16
PENDING_ROWS_MAX = 4
"""Events kept of one path until the comparison."""


class Ledger:
    """Protected paths that events changed, whoever's, and what comparisons said."""

    def __init__(self) -> None:
        self._changed: dict[bytes, int] = {}
        self._moved: dict[bytes, int] = {}
        self._compared: dict[bytes, tuple[int, tuple[int, int, bytes]]] = {}
        self.ended: set[int] = set()
        """Phases whose end, and so whose comparison, has gone by."""

    def observe(self, scene: Scene) -> None:
        """Take in the next events; `scene.diffs` then says what their comparisons mean."""
        self._observe_changes(scene)
        r = scene.r
        ends = (r["kind"] == Kind.PHASE) & (r["a0"] == 0)
        self.ended |= set(r["phase"][ends].tolist())
        scene.diffs = self._compare(scene, np.flatnonzero(r["kind"] == Kind.DIFF))

    def _observe_changes(self, scene: Scene) -> None:
        touches = scene.touches
        kinds = scene.r["kind"][touches.row]
        done = (touches.act & CHANGE) != 0
        done &= scene.r["result"][touches.row] >= 0
        folder = (kinds == Kind.RENAME) | (kinds == Kind.MOUNT) | touches.above
        for ledger, mask in ((self._changed, done), (self._moved, done & folder)):
            part = touches.where(mask)
            code = np.where(part.second, scene.r["path2"][part.row], scene.path_field[part.row])
            _, first = np.unique(code, return_index=True)
            for at in np.sort(first).tolist():
                row = int(part.row[at])
                path = scene.path_of(row, second=bool(part.second[at]))
                if len(ledger) < PATHS_MAX:
                    ledger.setdefault(path, int(scene.r["seq"][row]))

    def _compare(self, scene: Scene, rows: Rows) -> list[Diff]:
        found = []
        for row in rows.tolist():
            r = scene.r[row]
            path = canonical(scene.batch.text("path", row))
            said = (int(r["a0"]), int(r["a1"]), scene.batch.text("text", row))
            phase = int(scene.phase[row])
            before = self._compared.get(path)
            if before is None or before[0] != phase:
                repeated = before is not None and before[1] == said
                seq = int(r["seq"])
                found.append(Diff(row, seq, path, said[0], phase, self._explained(path, seq), repeated))
            if before is not None or len(self._compared) < PATHS_MAX:
                self._compared[path] = (phase, said)
        return found

    def _explained(self, path: bytes, seq: int) -> bool:
        if len(self._changed) >= PATHS_MAX or self._changed.get(path, seq) < seq:
            return True
        return any(self._moved.get(folder, seq) < seq for folder in folders_above(path))


@dataclass(frozen=True, slots=True)
class Diff:
    """One line of a comparison: `row` in the scene and its `seq`, canonical path, `DiffChange`, phase; whether an event
    explains it; whether an earlier phase's comparison said the same."""

    row: int
    seq: int
    path: bytes
    change: int
    phase: int
    explained: bool
    repeated: bool


class Pending:
    """Changes by the agent that become proof when the comparison confirms them; the first few of each path."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, bytes], list[tuple[int, int]]] = {}
        self._kept: list[Kept] = []
        self._confirmed: set[tuple[int, int]] = set()

    def add(self, scene: Scene, rows: Rows, second: Mask) -> None:
        """Keep the changes `rows`; `second`: it is the event's second object that changed."""
        code = np.where(second, scene.r["path2"][rows], scene.path_field[rows]).astype(np.int64) << 1 | second
        order = np.lexsort((rows, code))
        ranked = code[order]
        new = np.ones(len(rows), np.bool_)
        new[1:] = ranked[1:] != ranked[:-1]
        starts = np.flatnonzero(new)
        rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
        chosen = np.sort(order[rank < PENDING_ROWS_MAX])
        kept: list[int] = []
        for at in chosen.tolist():
            row = int(rows[at])
            key = (int(scene.phase[row]), scene.path_of(row, second=bool(second[at])))
            known = self._rows.get(key)
            if known is None and len(self._rows) < PENDING_PATHS_MAX:
                known = self._rows[key] = []
            if known is not None and len(known) < PENDING_ROWS_MAX:
                known.append((len(self._kept), len(kept)))
                kept.append(row)
        if kept:
            picked = np.array(kept, np.intp)
            self._kept.append(Kept(compact(scene.batch, picked), scene.phase[picked]))

    def confirm(self, diffs: list[Diff]) -> list[tuple[Kept, Rows]]:
        """The kept changes, each once, that a line of the same phase confirms: earlier ones, at its path or at
        a folder above it."""
        found: dict[int, set[int]] = {}
        for diff in diffs:
            for name in (diff.path, *folders_above(diff.path)):
                for place in self._rows.get((diff.phase, name), ()):
                    kept, row = place
                    earlier = int(self._kept[kept].batch.records["seq"][row]) < diff.seq
                    if earlier and place not in self._confirmed:
                        self._confirmed.add(place)
                        found.setdefault(kept, set()).add(row)
        return self._places(found)

    def unconfirmed(self, phase: int) -> list[tuple[Kept, Rows]]:
        """What is kept of a phase and was not confirmed."""
        found: dict[int, set[int]] = {}
        for (of, _), places in self._rows.items():
            for place in places if of == phase else ():
                if place not in self._confirmed:
                    found.setdefault(place[0], set()).add(place[1])
        return self._places(found)

    def _places(self, found: dict[int, set[int]]) -> list[tuple[Kept, Rows]]:
        return [(self._kept[kept], np.array(sorted(rows), np.intp)) for kept, rows in sorted(found.items())]


@dataclass(frozen=True, slots=True)
class Kept:
    """Events kept beyond their batch, and the phase of each."""

    batch: EventBatch
    phase: Codes

    def hits(
        self,
        rows: Rows,
        confidence: float,
        outcome: Outcome = Outcome.SUCCESS,
        intent: Intent = Intent.DELIBERATE,
        use: Use = Use.NONE,
    ) -> Hits:
        """Hold kept events against the sandbox after all."""
        n = len(rows)
        return Hits(
            self.batch,
            rows,
            self.phase[rows],
            np.full(n, outcome, np.uint8),
            np.full(n, confidence),
            np.full(n, intent, np.uint8),
            np.full(n, use, np.uint8),
            np.zeros(n, np.bool_),
        )


def compact(batch: EventBatch, rows: Rows) -> EventBatch:
    """Copies of the events `rows` with only the strings that they use."""
    records = batch.records[rows]
    codes: dict[int, int] = {0: 0}
    for name in ("path", "path2", "text", "exe"):
        used, inverse = np.unique(records[name], return_inverse=True)
        local = np.array([codes.setdefault(int(code), len(codes)) for code in used], np.uint32)
        records[name] = local[inverse]
    return EventBatch(records, [batch.strings[code] for code in codes])


def folders_above(path: bytes) -> list[bytes]:
    """The folders above an absolute path, innermost first, without the root."""
    found = []
    end = path.rfind(b"/")
    while end > 0:
        found.append(path[:end])
        end = path.rfind(b"/", 0, end)
    return found
