"""Processes that walk whole trees: what they come upon on the way, they did not look for.

`find /`, `grep -r /`, `du`, `os.walk("/")` list folder after folder outside the workspace and the system's
own libraries; a targeted read lists none. Whether a process is a walker is known only when it has ended, so
hits that depend on it are settled when incidents are asked for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from invigilator.detectors.base import Rows
from invigilator.ebpf.events import Kind
from invigilator.profiles.paths import canonical, to_bytes
from invigilator.profiles.policy import Policy

if TYPE_CHECKING:
    from invigilator.detectors.scene import Scene

FOLDERS = 8
"""Folders listed outside the workspace, the system's libraries and the protected places that make a walk."""
PROCESSES_MAX = 100_000
"""Processes whose listings are counted in one sandbox; later ones are no walkers."""

_SYSTEM = (b"/usr/", b"/opt/", b"/nix/", b"/snap/")

Process = tuple[int, int]
"""(pid, start time)."""


class Walks:
    """Which folders each process of a sandbox listed, up to `FOLDERS`."""

    def __init__(self, policy: Policy) -> None:
        own = [canonical(to_bytes(path)) + b"/" for path in policy.filesystem.workspace]
        self._elsewhere = (*_SYSTEM, *own)
        self._listed: dict[Process, set[bytes]] = {}

    def observe(self, scene: Scene) -> None:
        """Count the next events' listings."""
        r = scene.r
        rows = np.flatnonzero((r["kind"] == Kind.GETDENTS) & (r["result"] >= 0) & (scene.cls == 0))
        if not len(rows):
            return
        _, starts = np.unique(r["start_ns"][rows], return_inverse=True)
        key = starts.astype(np.uint64) << np.uint64(32) | r["pid"][rows]
        order = np.argsort(key, kind="stable")
        borders = [0, *(np.flatnonzero(np.diff(key[order])) + 1).tolist(), len(rows)]
        runs = [rows[order[start:stop]] for start, stop in pairwise(borders)]
        for run in sorted(runs, key=lambda run: int(run[0])):
            self._count(scene, run)

    def _count(self, scene: Scene, run: Rows) -> None:
        process = (int(scene.r["pid"][run[0]]), int(scene.r["start_ns"][run[0]]))
        listed = self._listed.get(process)
        if listed is None:
            if len(self._listed) >= PROCESSES_MAX:
                return
            listed = self._listed[process] = set()
        if len(listed) >= FOLDERS:
            return
        for code in np.unique(scene.r["path"][run]).tolist():
            folder = scene.batch.strings[code]
            if not (folder + b"/").startswith(self._elsewhere):
                listed.add(folder)

    def is_walker(self, process: Process, parent: Process) -> bool:
        """Whether the process, or the parent that started it for each find, walked a tree."""
        listed = max(len(self._listed.get(process, ())), len(self._listed.get(parent, ())))
        return listed >= FOLDERS
