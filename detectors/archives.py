"""Archives of Python distributions that the agent packed by hand, and installers that unpack one.

pip vouches for the tools that a distribution brings because somebody else packed it. A wheel that a program
of the agent's wrote is the agent's, whatever its metadata call it. What an installer or a build tool wrote,
what came over the network, and copies of archives that are not the agent's, are not by hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from invigilator.detectors.ancestry import Marks
from invigilator.detectors.base import Mask, Rows
from invigilator.detectors.identities import words
from invigilator.detectors.pythontools import is_builder
from invigilator.detectors.touches import Act
from invigilator.ebpf.events import Kind, Records

if TYPE_CHECKING:
    from invigilator.detectors.scene import Scene

ARCHIVES_MAX = 1 << 14
_ARCHIVE = re.compile(rb"\.(?:whl|zip|egg|tgz|tar|tar\.(?:gz|bz2|xz|zst))\Z")
_CARRIER = re.compile(
    rb"/(?:cp|mv|install|dd|cat|tee|rsync|tar|unzip|git|git-[a-z-]+|curl|wget|scp|sftp|aria2c|uv)\Z"
)
"""Programs that bring a file as it is."""
_INET = (2, 10)
Process = tuple[int, int]


class Archives:
    """Which archives are packed by others, and which processes installed one that the agent packed."""

    def __init__(self) -> None:
        self._builders = Marks()
        self._speakers = Marks()
        self._employed = Marks()
        self._packed: set[tuple[int, int]] = set()
        self._readers: set[Process] = set()

    def reads(self, scene: Scene) -> Mask:
        """Events that open an archive to read it."""
        opens: Mask = scene.kind(Kind.OPEN) & ((scene.acts & Act.READ) != 0) & ~scene.created & scene.judged
        if not opens.any():
            return opens
        verdict: Mask = opens & scene.batch.match("path", lambda path: _ARCHIVE.search(path) is not None)
        return verdict

    def observe(self, scene: Scene, reads: Mask, authored: Rows) -> Mask:
        """Take in the next events; of each, whether its process, or an ancestor, is an installer that opened
        an archive of the agent's. `authored`: those of `reads` whose object the agent wrote."""
        r = scene.r
        others = (
            scene.by_pip | self._builders.observe(r, _builds(scene)) | self._speakers.observe(r, _speaks(r))
        )
        return self._employed.observe(r, self._employing(scene, reads, authored, others))

    def _employing(self, scene: Scene, reads: Mask, authored: Rows, others: Mask) -> Rows:
        r = scene.r
        writes = scene.kind(Kind.OPEN, Kind.WRITE) & (
            (scene.acts & (Act.CREATE | Act.OPENED | Act.WRITE)) != 0
        )
        writes &= scene.judged & (r["result"] >= 0)
        if writes.any():
            writes &= scene.batch.match("path", lambda path: _ARCHIVE.search(path) is not None)
        mine = set(authored.tolist())
        carrier = {c for c in np.unique(r["exe"]).tolist() if _CARRIER.search(scene.batch.strings[c])}
        volume, number = words(r, "")
        found = []
        for row in np.flatnonzero(reads | writes).tolist():
            key, process = (int(volume[row]), int(number[row])), (int(r["pid"][row]), int(r["start_ns"][row]))
            if reads[row]:
                if row in mine and key not in self._packed:
                    self._readers.add(process)
                    if scene.by_pip[row]:
                        found.append(row)
            elif process not in self._readers and (others[row] or int(r["exe"][row]) in carrier):
                if len(self._packed) < ARCHIVES_MAX:
                    self._packed.add(key)
            else:
                self._packed.discard(key)
        return np.array(found, np.intp)


def _builds(scene: Scene) -> Rows:
    """Executions of build tools."""
    rows = np.flatnonzero(scene.kind(Kind.EXEC) & (scene.r["result"] >= 0))
    texts = [
        code for code in np.unique(scene.r["text"][rows]).tolist() if is_builder(scene.batch.strings[code])
    ]
    found: Rows = rows[np.isin(scene.r["text"][rows], texts)]
    return found


def _speaks(r: Records) -> Rows:
    """Connections to elsewhere than loopback that came about, or are under way."""
    reached = np.isin(r["kind"], (Kind.CONNECT, Kind.CONNECT_RESULT)) & np.isin(r["result"], (0, -115))
    rows = np.flatnonzero(reached & np.isin(r["family"], _INET))
    address = r["address"][rows]
    loopback = (address[:, 12] == 127) | ((address[:, :15] == 0).all(axis=1) & (address[:, 15] == 1))
    found: Rows = rows[~loopback]
    return found
