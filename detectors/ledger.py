"""What changed, by the events and by the end-of-phase comparison, held against each other.

A comparison (DIFF) that no event explains is a change that the sensor did not see. One that repeats what an
earlier phase's comparison said is that phase's change. DIFF may carry the content's hex SHA-256 as `text`;
without it a change of a file that an earlier phase had changed too is told by its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from invigilator.detectors.base import Mask, Rows
from invigilator.detectors.kept import Kept, keep
from invigilator.detectors.touches import CHANGE, Act, Touches
from invigilator.ebpf.events import DiffChange, Kind, Phase
from invigilator.profiles.paths import canonical

if TYPE_CHECKING:
    from invigilator.detectors.scene import Scene

PATHS_MAX = 1 << 18
"""Changed protected paths remembered; of one phase."""
_NEVER = (1 << 64) - 1
PENDING_PATHS_MAX = 1 << 16
PENDING_ROWS_MAX = 4
"""Events kept of one path until the comparison."""


class Ledger:
    """Protected paths that events changed, whoever's, and what comparisons said."""

    def __init__(self) -> None:
        self._changed: dict[int, dict[bytes, int]] = {}
        self._moved: dict[int, dict[bytes, int]] = {}
        self._made: dict[bytes, int] = {}
        self._seen: dict[bytes, int] = {}
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
        rows, act = touches.row, touches.act
        done = scene.r["result"][rows] >= 0
        changes = done & ((act & CHANGE) != 0)
        fresh = (act & (Act.CREATE | Act.MAKE_DIR)) != 0
        folder = np.isin(scene.r["kind"][rows], (Kind.RENAME, Kind.MOUNT)) | touches.above
        used = done & ~fresh & ((act & (Act.READ | Act.OPENED | Act.WRITE | Act.REMOVE)) != 0)
        phase = scene.phase[rows]
        for one in np.unique(phase).tolist():
            now = changes & (phase == one)
            self._note(scene, touches.where(now), self._changed.setdefault(one, {}))
            self._note(scene, touches.where(now & folder), self._moved.setdefault(one, {}))
        self._note(scene, touches.where(changes & fresh & scene.judged[rows]), self._made)
        self._note(scene, touches.where(used), self._seen)

    def _note(self, scene: Scene, touches: Touches, table: dict[bytes, int]) -> None:
        """Remember the first event of each path."""
        paths, which = scene.places(touches.row, touches.second)
        first = np.full(len(paths), np.iinfo(np.uint64).max, np.uint64)
        np.minimum.at(first, which, scene.r["seq"][touches.row])
        for at in np.argsort(first, kind="stable").tolist():
            if len(table) < PATHS_MAX:
                table.setdefault(paths[at], int(first[at]))

    def made_since(self, path: bytes) -> int:
        """Since which event there is an object of that name that is the agent's own making."""
        made = self._made.get(path, _NEVER)
        return made if made < self._seen.get(path, _NEVER) else _NEVER

    def made_by_agent(self, scene: Scene, touches: Touches) -> Mask:
        """Whether the agent made the object's name in an earlier event, where it had not been seen before."""
        paths, which = scene.places(touches.row, touches.second)
        made = [self._made.get(path, _NEVER) for path in paths]
        seen = [self._seen.get(path, _NEVER) for path in paths]
        since = np.array([m if m < s else _NEVER for m, s in zip(made, seen, strict=True)], np.uint64)
        verdict: Mask = since[which] < scene.r["seq"][touches.row] if paths else np.zeros(0, np.bool_)
        return verdict

    def seen_before(self, scene: Scene, touches: Touches) -> Mask:
        """Whether the object's name was seen in use before the event, and not as something of the agent's."""
        paths, which = scene.places(touches.row, touches.second)
        made = [self._made.get(path, _NEVER) for path in paths]
        seen = [self._seen.get(path, _NEVER) for path in paths]
        since = np.array([s if s < m else _NEVER for m, s in zip(made, seen, strict=True)], np.uint64)
        verdict: Mask = since[which] < scene.r["seq"][touches.row] if paths else np.zeros(0, np.bool_)
        return verdict

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
                found.append(
                    Diff(row, seq, path, said[0], phase, self._explained(path, seq, said[0], phase), repeated)
                )
            if before is not None or len(self._compared) < PATHS_MAX:
                self._compared[path] = (phase, said)
        return found

    def _explained(self, path: bytes, seq: int, change: int, phase: int) -> bool:
        """Whether an event of the same phase, or of an unknown one, tells of the change. Past what is kept in
        memory only additions are taken as told: a flood must not hide a change."""
        for of in {phase, Phase.UNKNOWN}:
            changed, moved = self._changed.get(of, {}), self._moved.get(of, {})
            if changed.get(path, seq) < seq or (len(changed) >= PATHS_MAX and change == DiffChange.ADDED):
                return True
            if any(moved.get(folder, seq) < seq for folder in folders_above(path)):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Diff:
    """One line of a comparison: `row` in the scene and its `seq`, canonical path, `DiffChange`, phase;
    whether an event explains it; whether an earlier phase's comparison said the same."""

    row: int
    seq: int
    path: bytes
    change: int
    phase: int
    explained: bool
    repeated: bool


class Pending:
    """Changes by the agent that the comparison may confirm; the first few of each path."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, bytes], list[tuple[int, int]]] = {}
        self._kept: list[Kept] = []
        self._confirmed: set[tuple[int, int]] = set()
        self._overflowed = False

    def __len__(self) -> int:
        """How many paths have such changes."""
        return len(self._rows)

    def add(self, scene: Scene, touches: Touches) -> None:
        """Keep changes."""
        rows = touches.row
        paths, which = scene.places(rows, touches.second)
        group = which.astype(np.int64) << 2 | scene.phase[rows]
        order = np.lexsort((rows, group))
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
        kept: list[int] = []
        for at in np.sort(order[rank < PENDING_ROWS_MAX]).tolist():
            key = (int(scene.phase[rows[at]]), paths[int(which[at])])
            known = self._rows.get(key)
            if known is None and len(self._rows) < PENDING_PATHS_MAX:
                known = self._rows[key] = []
            self._overflowed |= known is None
            if known is not None and len(known) < PENDING_ROWS_MAX:
                known.append((len(self._kept), len(kept)))
                kept.append(int(rows[at]))
        if kept:
            picked = np.array(kept, np.intp)
            self._kept.append(keep(scene, picked))

    def confirm(self, diffs: list[Diff]) -> list[tuple[Kept, Rows]]:
        """The kept changes, each once, that a line of the same phase confirms: earlier ones, at its path or
        at a folder above it."""
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

    def forgot(self, diff: Diff) -> bool:
        """Whether a change of that path may have come when there was no more room."""
        names = (diff.path, *folders_above(diff.path))
        return self._overflowed and not any((diff.phase, name) in self._rows for name in names)

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


def folders_above(path: bytes) -> list[bytes]:
    """The folders above an absolute path, innermost first, without the root."""
    found = []
    end = path.rfind(b"/")
    while end > 0:
        found.append(path[:end])
        end = path.rfind(b"/", 0, end)
    return found
