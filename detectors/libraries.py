"""Shared libraries of the agent's making that the verifier's programs load.

The system's programs load libraries that nobody names on a command line: nsswitch.conf and openssl.cnf name
them, and the dynamic loader's cache decides which of two of one name is taken. Honest work installs
libraries, newer ones of the system's too; it writes none for look-ups of users or for OpenSSL's start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from invigilator.detectors.ancestry import Marks
from invigilator.detectors.base import Mask, Rows
from invigilator.detectors.scene import Scene
from invigilator.detectors.walks import Process
from invigilator.ebpf.events import Kind

HOOKED, UNSURE = 0.9, 0.6
"""Loaded by all that runs; what honest work does too."""
NAMES_MAX = 4096
PROCESSES_MAX = 1 << 14
_SHARED = re.compile(rb"\.so(?:\.[0-9.]+)?\Z")
_SWITCHED = re.compile(rb"/libnss_[^/]+\.so\.2\Z")
_PROGRAM = re.compile(rb"/(?:usr/)?s?bin/[^/]+\Z")
_OF_SYSTEM = re.compile(rb"/(?:usr/)?lib(?:32|64|x32)?/(?:[^/]+-linux-[^/]+/)?(lib[^/]+\.so[0-9.]*)\Z")


class Libraries:
    """What the system's own are called, and what the verifier loads of the agent's."""

    def __init__(self, is_inside: Callable[[bytes], bool]) -> None:
        """`is_inside`: whether a path is the workspace's, where a library may be the task."""
        self._is_inside = is_inside
        self._known: dict[bytes, None] = {}
        self._configured = Marks()
        self._switched = Marks()
        self._configuring: set[Process] = set()

    def learn(self, scene: Scene) -> None:
        """Names of the system's own shared libraries that programs load."""
        r = scene.r
        opened = scene.kind(Kind.OPEN) & (r["result"] >= 0) & ~scene.created
        for field in ("path", "path2"):
            for code in np.unique(r[field][opened]).tolist():
                found = _OF_SYSTEM.match(scene.batch.strings[code])
                if found and len(self._known) < NAMES_MAX:
                    self._known.setdefault(found[1])

    def loaded(self, scene: Scene, reads: Mask, names: Rows, crypto: Rows) -> Iterator[tuple[Rows, float]]:
        """Of the verifier's `reads`, libraries of the agent's, and the confidence of each. `names`, `crypto`:
        reads of such a configuration of the agent's."""
        match = scene.batch.match
        switched = self._switched.observe(scene.r, names)
        configured = self._configured.observe(scene.r, crypto)
        next_ = self._next(scene, reads, crypto)
        asked = reads & match("exe", lambda exe: _PROGRAM.match(exe) is not None)
        asked &= match("path", lambda path: _SHARED.search(path) is not None and not self._is_inside(path))
        rows = scene.context.authored.loaded(scene, np.flatnonzero(asked))
        if not len(rows):
            return
        library = match("path", lambda path: _SWITCHED.search(path) is not None)
        proven = ((switched & library) | next_)[rows]
        instead = np.zeros(len(rows), np.bool_)
        for field in ("path", "path2"):
            instead |= match(field, lambda path: path.rpartition(b"/")[2] in self._known)[rows]
        yield rows[proven], HOOKED
        yield rows[~proven & (instead | configured[rows])], UNSURE

    def _next(self, scene: Scene, reads: Mask, crypto: Rows) -> Mask:
        """What is the next that a process reads after such a configuration."""
        r = scene.r
        found = np.zeros(len(r), np.bool_)
        if not len(crypto) and not self._configuring:
            return found
        rows = np.flatnonzero(reads)
        _, start = np.unique(r["start_ns"][rows], return_inverse=True)
        who = start.astype(np.uint64) << np.uint64(32) | r["pid"][rows]
        order = np.lexsort((rows, who))
        rows, who = rows[order], who[order]
        tells = np.isin(rows, crypto)
        again = np.concatenate([[False], who[1:] == who[:-1]])[: len(who)]
        found[rows[1:]] = (tells[:-1] & again[1:])[: max(len(rows) - 1, 0)]
        begins = np.flatnonzero(~again)
        ends = np.append(begins[1:], len(rows))[: len(begins)] - 1
        for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
            process = _process(scene, int(rows[first]))
            found[rows[first]] = process in self._configuring
            self._configuring.discard(process)
            if tells[last] and len(self._configuring) < PROCESSES_MAX:
                self._configuring.add(process)
        return found


def _process(scene: Scene, row: int) -> Process:
    return int(scene.r["pid"][row]), int(scene.r["start_ns"][row])
