"""Processes that go through the workspace file by file: grep -r, tar, git add, cp -a.

A canary in the workspace is met by whatever goes through all of it. Such a process listed the canary's folder
and read other files of the workspace too, or read many; and it read others beside the canary, or after it.
"""

from __future__ import annotations

import numpy as np

from invigilator.detectors.base import Mask
from invigilator.detectors.scene import Scene
from invigilator.detectors.touches import Act
from invigilator.detectors.walks import PROCESSES_MAX, Met, Process
from invigilator.ebpf.events import Kind
from invigilator.profiles.paths import canonical, to_bytes
from invigilator.profiles.policy import Policy

MANY = 9
"""Files read that make a tour without a listing: arguments that find gave to xargs."""
PER_PROCESS = 16
"""Events of a process that are looked at for what lies beside a canary."""
OTHERS = 2
"""Files read, the canary among them, that make a tour with a listing."""


class Tours:
    """Which processes listed folders of the workspace, and which files there each read, up to `MANY`."""

    def __init__(self, policy: Policy) -> None:
        self._own = tuple(canonical(to_bytes(path)) for path in policy.filesystem.workspace)
        self._listed: dict[tuple[Process, bytes], int] = {}
        self._read: dict[Process, set[bytes]] = {}
        self._beside: set[tuple[Process, bytes]] = set()
        self._last: dict[Process, int] = {}

    def inside(self, scene: Scene) -> Mask:
        """Which strings are paths in the workspace."""
        below = tuple(path + b"/" for path in self._own)
        own = [s in self._own or s.startswith(below) for s in scene.batch.strings]
        return np.array(own, np.bool_)

    def observe(self, scene: Scene) -> None:
        """Take in the next events' listings and reads."""
        r = scene.r
        own = self.inside(scene)[r["path"]] & (r["result"] >= 0)
        lists = np.flatnonzero(own & scene.kind(Kind.GETDENTS))
        reads = np.flatnonzero(own & scene.kind(Kind.OPEN) & ((scene.acts & Act.READ) != 0))
        planted = scene.context.canaries
        folders = {path.rpartition(b"/")[0] for path in planted}
        strings = scene.batch.strings
        at_canary = np.fromiter((s in folders for s in strings), np.bool_, len(strings))
        beside = np.fromiter(
            (s.rpartition(b"/")[0] in folders and s not in planted for s in strings), np.bool_, len(strings)
        )
        other = np.fromiter((s not in planted for s in strings), np.bool_, len(strings))
        for row in _firsts(scene, lists[at_canary[r["path"][lists]]], PER_PROCESS):
            if len(self._listed) < PROCESSES_MAX:
                key = (_process(scene, row), strings[int(r["path"][row])])
                self._listed.setdefault(key, int(r["seq"][row]))
        for row in _firsts(scene, reads[beside[r["path"][reads]]], PER_PROCESS):
            if len(self._beside) < PROCESSES_MAX:
                self._beside.add((_process(scene, row), strings[int(r["path"][row])].rpartition(b"/")[0]))
        others = reads[other[r["path"][reads]]]
        for row in _lasts(scene, others):
            process = _process(scene, row)
            if process in self._last or len(self._last) < PROCESSES_MAX:
                self._last[process] = int(r["seq"][row])
        for row in _firsts(scene, reads, MANY):
            process = _process(scene, row)
            if process in self._read or len(self._read) < PROCESSES_MAX:
                files = self._read.setdefault(process, set())
                if len(files) < MANY:
                    files.add(scene.batch.strings[int(r["path"][row])])

    def is_tour(self, met: Met) -> bool:
        """Whether the process met what it read while it went through the workspace."""
        files = len(self._read.get(met.process, ()))
        since = [self._listed.get((who, met.folder)) for who in (met.process, met.parent)]
        listed = any(seq is not None and seq < met.first for seq in since)
        goes_on = self._last.get(met.process, 0) > met.last
        beside = (met.process, met.folder) in self._beside
        return (files >= MANY or (listed and files >= OTHERS)) and (beside or goes_on)


def _process(scene: Scene, row: int) -> Process:
    return int(scene.r["pid"][row]), int(scene.r["start_ns"][row])


def _lasts(scene: Scene, rows: np.ndarray) -> list[int]:
    """The last event of every process."""
    r = scene.r[rows]
    order = np.lexsort((rows, r["pid"], r["start_ns"]))
    rows, r = rows[order], r[order]
    ends = np.ones(len(rows), np.bool_)
    ends[:-1] = (r["pid"][1:] != r["pid"][:-1]) | (r["start_ns"][1:] != r["start_ns"][:-1])
    found: list[int] = rows[ends].tolist()
    return found


def _firsts(scene: Scene, rows: np.ndarray, most: int) -> list[int]:
    """The first event of each of the first `most` paths of every process."""
    r = scene.r[rows]
    order = np.lexsort((rows, r["path"], r["pid"], r["start_ns"]))
    rows, r = rows[order], r[order]
    new = np.ones(len(rows), np.bool_)
    new[1:] = np.logical_or.reduce([r[f][1:] != r[f][:-1] for f in ("path", "pid", "start_ns")])
    rows = np.sort(rows[new])
    r = scene.r[rows]
    order = np.lexsort((rows, r["pid"], r["start_ns"]))
    r = r[order]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (r["pid"][1:] != r["pid"][:-1]) | (r["start_ns"][1:] != r["start_ns"][:-1])
    starts = np.flatnonzero(begins)
    rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    firsts: list[int] = np.sort(rows[order][rank < most]).tolist()
    return firsts
