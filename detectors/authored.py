"""Files of the agent's own making, by inode, and package managers that opened one.

An installer vouches for what it replaces because what it unpacks is somebody else's. One that loaded a
library, or unpacks an archive, that the agent wrote in the sandbox does the agent's work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import Mask, Rows
from invigilator.detectors.identities import words
from invigilator.detectors.touches import Act
from invigilator.ebpf.events import Kind, Phase, Records

if TYPE_CHECKING:
    from invigilator.detectors.scene import Scene

KNOWN_MAX = 1 << 17
"""Inodes remembered; past that every file outside the system's own folders may be the agent's."""
_SYSTEM = (b"/usr/", b"/lib/", b"/lib64/", b"/var/lib/", b"/var/cache/", b"/proc/", b"/sys/", b"/dev/")
Keys = npt.NDArray[np.uint64]


class Authored:
    """The inodes that the agent wrote, in phase agent and not by a package manager."""

    def __init__(self) -> None:
        self._known: dict[int, None] = {}
        self._full = False

    def opened(self, scene: Scene, asked: Mask) -> Rows:
        """Take in the next events; of the events `asked`, those whose object the agent had written."""
        r = scene.r
        done = (r["result"] >= 0) & (r["ino"] != 0) & (scene.kind(Kind.OPEN, Kind.WRITE))
        writes = done & ((scene.acts & (Act.CREATE | Act.OPENED | Act.WRITE)) != 0)
        own = writes & scene.judged & ~scene.installing & (scene.phase == Phase.AGENT)
        others = writes & ~own & scene.created
        changes = np.flatnonzero(own | others)
        rows = np.flatnonzero(asked & done)
        found = self._among(scene, rows, changes, own) if len(rows) else rows
        keys, last = np.unique(_keys(r[changes])[::-1], return_index=True)
        mine = own[changes][::-1][last]
        for key in keys[~mine].tolist():
            self._known.pop(key, None)
        room = KNOWN_MAX - len(self._known)
        self._full |= int(mine.sum()) > room
        self._known.update(dict.fromkeys(keys[mine][:room].tolist()))
        return found

    def loaded(self, scene: Scene, rows: Rows) -> Rows:
        """Of the events `rows`, of a later phase, those whose object the agent had written."""
        if not len(rows) or not self._known:
            return rows[:0]
        known = np.fromiter(self._known, np.uint64, len(self._known))
        return rows[np.isin(_keys(scene.r[rows]), known)]

    def _among(self, scene: Scene, rows: Rows, changes: Rows, own: Mask) -> Rows:
        asked, changed = _keys(scene.r[rows]), _keys(scene.r[changes])
        found = []
        for key in np.unique(asked).tolist():
            here = changes[changed == key]
            before = key in self._known
            for row in rows[asked == key].tolist():
                at = int(np.searchsorted(here, row))
                if bool(own[here[at - 1]]) if at else before:
                    found.append(row)
        if self._full:
            foreign = scene.batch.match("path", lambda path: not path.startswith(_SYSTEM))
            found += rows[foreign[rows]].tolist()
        return np.array(sorted(set(found)), np.intp)


def _keys(r: Records) -> Keys:
    volume, number = words(r, "")
    mixed: Keys = volume * np.uint64(0x9E3779B97F4A7C15) ^ number
    return mixed
