"""Who descends from whom: marks that a process gets by what it does, and its later children inherit.

Memory holds marked processes, the living and the last `MARKED_MAX` (a main thread's end is not yet its
process's). A process is (pid, start time), so a used-again pid is another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import Mask, Rows
from invigilator.ebpf.events import Kind, Records

MARKED_MAX = 1 << 14
Numbers = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
_NO_ROWS: Rows = np.zeros(0, np.intp)


class Marks:
    """One mark over the processes of a sandbox.

    `marked(records)` says of each event whether its process, or an ancestor before it forked, did something
    that marks; the marking event itself counts as marked.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[int, int], int] = {}
        self._ended: dict[tuple[int, int], None] = {}

    def __len__(self) -> int:
        return len(self._since)

    def holds(self, pid: int, start_ns: int, seq: int) -> bool:
        """Whether a process is marked before event `seq`, as far as batches were taken in."""
        return self._since.get((pid, start_ns), NEVER) < seq

    def adopt(self, process: tuple[int, int], seq: int) -> None:
        """Mark a process from event `seq` on, by another's deed in the batch that is taken in next."""
        self._since[process] = min(seq, self._since.get(process, seq))

    def observe(self, r: Records, marking: Rows, parents: Rows = _NO_ROWS) -> Mask:
        """Take in a batch, of which the events `marking` mark their process, and the events `parents` that
        process's parent; the verdicts, shape (n,)."""
        if not len(marking) and not len(parents) and not self._since:
            return np.zeros(len(r), np.bool_)
        people = _People(r)
        since = people.known_since(self._since)
        np.minimum.at(since, people.actor[marking], r["seq"][marking].astype(np.int64))
        np.minimum.at(since, people.parent[parents], r["seq"][parents].astype(np.int64))
        self._inherit(r, people, since)
        verdict: Mask = since[people.actor] <= r["seq"].astype(np.int64)
        self._remember(r, people, since)
        return verdict

    def _inherit(self, r: Records, people: _People, since: Numbers) -> None:
        """Children of marked parents are marked from birth; by pointer doubling, so depth costs its log."""
        forks = np.flatnonzero(r["kind"] == Kind.FORK)
        child, parent = people.actor[forks], people.parent[forks]
        born = r["seq"][forks].astype(np.int64)
        direct = since[parent] < born
        birth = np.full(len(since), NEVER)
        birth[child] = born
        up = np.arange(len(since))
        up[child] = parent
        heir = np.zeros(len(since), np.bool_)
        heir[child] = direct
        for _ in range(len(since).bit_length() + 1):
            wider = heir | heir[up]
            if (wider == heir).all() and (up == up[up]).all():
                break
            heir, up = wider, up[up]
        since[heir] = np.minimum(since[heir], birth[heir])

    def _remember(self, r: Records, people: _People, since: Numbers) -> None:
        keep = since != NEVER
        ends = people.actor[r["kind"] == Kind.EXIT]
        ends = ends[keep[ends]]
        keep[ends[:-MARKED_MAX]] = False
        marked = np.flatnonzero(keep)
        for at in marked[np.argsort(since[marked], kind="stable")].tolist():
            self._since.setdefault(people.name(at), int(since[at]))
        for at in ends[-MARKED_MAX:].tolist():
            self._ended[people.name(at)] = None
        while len(self._since) > MARKED_MAX and self._ended:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._since.pop(oldest, None)


class _People:
    """The processes of a batch, numbered; `actor` and `parent`: each event's process and its parent."""

    def __init__(self, r: Records) -> None:
        pid = np.concatenate([r["pid"], r["ppid"]]).astype(np.uint64)
        start = np.concatenate([r["start_ns"], r["parent_start_ns"]])
        starts, start_code = np.unique(start, return_inverse=True)
        key = start_code.astype(np.uint64) << np.uint64(32) | pid
        self._keys, code = np.unique(key, return_inverse=True)
        self._starts = starts
        self.actor, self.parent = code[: len(r)], code[len(r) :]

    def name(self, at: int) -> tuple[int, int]:
        key = int(self._keys[at])
        return key & 0xFFFFFFFF, int(self._starts[key >> 32])

    def known_since(self, since: dict[tuple[int, int], int]) -> Numbers:
        """Since when each process is marked, as known before; whichever is shorter is gone through."""
        found = np.full(len(self._keys), NEVER)
        if not since:
            return found
        if len(self._keys) <= len(since):
            for at in range(len(self._keys)):
                found[at] = since.get(self.name(at), NEVER)
            return found
        for (pid, start), seq in since.items():
            at = int(np.searchsorted(self._starts, np.uint64(start)))
            if at < len(self._starts) and self._starts[at] == start:
                key = np.uint64(at << 32 | pid)
                place = int(np.searchsorted(self._keys, key))
                if place < len(self._keys) and self._keys[place] == key:
                    found[place] = seq
        return found
