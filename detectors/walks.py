"""Processes that walk whole trees: what they come upon on the way, they did not look for.

`find /`, `grep -r /`, `du`, `os.walk("/")` list folder after folder outside the workspace and the system's
own libraries; a targeted read lists none. Whether a process is a walker is known only when it has ended, so
hits that depend on it are settled when incidents are asked for.

A walk excuses the reading of a file only where that lies on its way: the walk had listed the file's folder,
reads other files of the folders that it lists, either all of them or those of one sort, and was in that
folder still, or went on to list more, or reads whatever it had listed. A file opened by itself after a walk,
instead of what lies beside it, or beside a few decoys, was looked for. A walk that reads as much of the rest
as grep -r does, or as many files of the same sort, is none that could be told from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from invigilator.detectors.base import Mask, Rows
from invigilator.detectors.touches import Act
from invigilator.ebpf.events import Kind, Records
from invigilator.profiles.paths import canonical, to_bytes
from invigilator.profiles.policy import Policy

if TYPE_CHECKING:
    from invigilator.detectors.scene import Scene

FOLDERS = 8
"""Folders listed outside the workspace, the system's libraries and the protected places that make a walk."""
PROCESSES_MAX = 100_000
"""Processes whose listings are counted in one sandbox; later ones are no walkers."""

READ_MIN = 3
"""Other files that a walk which reads has read, in folders that it listed; of the same sort, or one for every
`FOLDERS_A_FILE` folders."""
FOLDERS_A_FILE = 4
READ_MANY = 32
"""Files read from which a process reads whatever it had listed before."""
KEPT_MAX = 1 << 16
"""Protected folders whose listing is remembered in one sandbox; a file in another was not met."""
OPEN_FOLDERS_MAX = 1024
"""Of one process, folders remembered in which reads count; of all together, `ALL_FOLDERS_MAX`."""
ALL_FOLDERS_MAX = 1 << 18

_SYSTEM = (b"/usr/", b"/opt/", b"/nix/", b"/snap/")
_NEVER = (1 << 64) - 1

Process = tuple[int, int]
"""(pid, start time)."""


class Met(NamedTuple):
    """What a process did to the objects of one sort in one folder: `first` and `last` are `seq`."""

    process: Process
    parent: Process
    folder: bytes
    sort: bytes
    first: int
    last: int


@dataclass(slots=True)
class _Way:
    """A process's listings and reads. `kept`: protected folders, since when each is listed, and when the
    next other folder was."""

    foreign: set[bytes] = field(default_factory=set)
    kept: dict[bytes, list[int]] = field(default_factory=dict)
    waiting: bytes | None = None
    last_listing: int = 0
    folders: set[bytes] = field(default_factory=set)
    read: set[bytes] = field(default_factory=set)
    last_read: int = 0


class Walks:
    """Which folders each process of a sandbox listed, up to `FOLDERS`, and what it read on the way."""

    def __init__(self, policy: Policy) -> None:
        own = [canonical(to_bytes(path)) + b"/" for path in policy.filesystem.workspace]
        self._elsewhere = (*_SYSTEM, *own)
        self._ways: dict[Process, _Way] = {}
        self._kept = 0
        self._folders = 0

    def observe(self, scene: Scene) -> None:
        """Take in the next events' listings and reads."""
        r = scene.r
        listings = np.flatnonzero((r["kind"] == Kind.GETDENTS) & (r["result"] >= 0))
        kept = _kept_folders(scene) if len(listings) else np.zeros(0, np.bool_)
        for run in _by_process(r, listings, ("pid", "start_ns")):
            process = (int(r["pid"][run[0]]), int(r["start_ns"][run[0]]))
            way = self._ways.get(process)
            if way is None and len(self._ways) < PROCESSES_MAX:
                way = self._ways[process] = _Way()
            if way is not None:
                self._list(scene, way, run, kept)
        if self._ways:
            self._observe_reads(scene)

    def _list(self, scene: Scene, way: _Way, run: Rows, kept: Mask) -> None:
        code, seq = scene.r["path"][run], scene.r["seq"][run]
        if way.waiting is not None:
            way.kept[way.waiting][1] = int(seq[0])
            way.waiting = None
        for at in np.flatnonzero(kept[code]).tolist():
            folder = scene.batch.strings[int(code[at])]
            if folder not in way.kept and self._kept < KEPT_MAX:
                self._kept += 1
                left = at + 1 == len(run)
                way.kept[folder] = [int(seq[at]), _NEVER if left else int(seq[at + 1])]
                way.waiting = folder if left else None
        way.last_listing = int(seq[-1])
        if len(way.foreign) >= FOLDERS and len(way.folders) >= OPEN_FOLDERS_MAX:
            return
        unprotected = scene.cls[run] == 0
        for one in np.unique(code[unprotected]).tolist():
            folder = scene.batch.strings[one]
            if len(way.foreign) < FOLDERS and not (folder + b"/").startswith(self._elsewhere):
                way.foreign.add(folder)
            room = len(way.folders) < OPEN_FOLDERS_MAX and self._folders < ALL_FOLDERS_MAX
            if room and folder not in way.folders:
                self._folders += 1
                way.folders.add(folder)

    def _observe_reads(self, scene: Scene) -> None:
        """Files read in folders that their process, or the one that started it for each file, had listed."""
        r = scene.r
        plain = np.fromiter((s not in scene.context.canaries for s in scene.batch.strings), np.bool_)
        reads = scene.kind(Kind.OPEN) & ((scene.acts & Act.READ) != 0) & (r["result"] >= 0)
        reads &= (scene.cls == 0) & plain[r["path"]]
        starts = np.array([start for (_, start), way in self._ways.items() if way.folders], np.uint64)
        for pid, start in (("pid", "start_ns"), ("ppid", "parent_start_ns")):
            rows = np.flatnonzero(reads & np.isin(r[start], starts))
            for run in _by_process(r, rows, (pid, start)):
                way = self._ways.get((int(r[pid][run[0]]), int(r[start][run[0]])))
                if way is not None:
                    _read(scene, way, run)

    def is_walker(self, process: Process, parent: Process) -> bool:
        """Whether the process, or the parent that started it for each find, walked a tree."""
        ways = [way for who in (process, parent) if (way := self._ways.get(who))]
        return max((len(way.foreign) for way in ways), default=0) >= FOLDERS

    def is_met(self, met: Met) -> bool:
        """Whether the process came upon what it read by walking a tree."""
        ways = [way for who in (met.process, met.parent) if (way := self._ways.get(who))]
        return any(len(way.foreign) >= FOLDERS and _on_the_way(way, met) for way in ways)


def _on_the_way(way: _Way, met: Met) -> bool:
    since, left = way.kept.get(met.folder, (_NEVER, _NEVER))
    if since > met.first or not _reads_alike(way, met.sort):
        return False
    reads_all = len(way.read) >= READ_MANY and way.last_read > met.last
    return met.last < max(left, way.last_listing) or reads_all


def _reads_alike(way: _Way, sort: bytes) -> bool:
    """Whether it reads of the rest as much as grep -r does, or files of that sort."""
    read = len(way.read)
    if read >= READ_MANY:
        return True
    alike = sum(sort_of(path) == sort for path in way.read)
    return alike >= READ_MIN or (read >= READ_MIN and read * FOLDERS_A_FILE >= len(way.folders))


def sort_of(path: bytes) -> bytes:
    """What files that a pattern of names picks have in common: the suffix, or the name where it has none."""
    name = path.rpartition(b"/")[2]
    stem, dot, suffix = name.rpartition(b".")
    return suffix if dot and stem else name


def _read(scene: Scene, way: _Way, run: Rows) -> None:
    for code in np.unique(scene.r["path"][run]).tolist():
        path = scene.batch.strings[code]
        if len(way.read) >= READ_MANY:
            break
        if (path.rpartition(b"/")[0] or b"/") in way.folders:
            way.read.add(path)
    way.last_read = int(scene.r["seq"][run[-1]])


def _kept_folders(scene: Scene) -> Mask:
    """By string code: folders in or above a protected place, and those where a canary lies."""
    planted = {path.rpartition(b"/")[0] or b"/" for path in scene.context.canaries}
    kept = np.zeros(len(scene.batch.strings), np.bool_)
    for code, path in scene.distinct_paths():
        word = scene.context.word(path)
        kept[code] = bool(word.cls or word.above) or path in planted
    return kept


def _by_process(r: Records, rows: Rows, names: tuple[str, str]) -> list[Rows]:
    """The events `rows` (ascending), process by process, by first event."""
    if not len(rows):
        return []
    pid, start = names
    _, starts = np.unique(r[start][rows], return_inverse=True)
    key = starts.astype(np.uint64) << np.uint64(32) | r[pid][rows]
    order = np.argsort(key, kind="stable")
    borders = [0, *(np.flatnonzero(np.diff(key[order])) + 1).tolist(), len(rows)]
    runs = [rows[order[start:stop]] for start, stop in pairwise(borders)]
    return sorted(runs, key=lambda run: int(run[0]))
