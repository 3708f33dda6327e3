"""Processes that the agent took over: what it wrote into another's memory or registers acts in its stead.

A system call names its target by the number that it has in the caller's own pid namespace; forks and execs
tell every process's. Callers in a pid namespace of the agent's making call others by numbers that say nothing
here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from invigilator.detectors.ancestry import Marks
from invigilator.detectors.base import Mask, Rows
from invigilator.detectors.touches import Act
from invigilator.ebpf.events import Kind

if TYPE_CHECKING:
    from invigilator.detectors.scene import Scene

CLONE_NEWPID = 0x20000000
WRITING = (4, 5, 6, 13, 15, 0x4205)
"""ptrace requests POKETEXT, POKEDATA, POKEUSR, SETREGS, SETFPREGS, SETREGSET (sys/ptrace.h)."""
NUMBERS_MAX = 1 << 16
_MEMORY = re.compile(rb"/proc/(\d{1,10})(?:/task/\d+)?/mem\Z")
Process = tuple[int, int]


class Taken:
    """Others' processes by their own numbers, and which of them the agent wrote into."""

    def __init__(self) -> None:
        self._numbers: dict[int, Process] = {}
        self._unshared: set[Process] = set()
        self._nested = Marks()
        self._taken = Marks()

    def observe(self, scene: Scene) -> Mask:
        """Take in a batch; of each event, whether its process, or an ancestor, was taken over before."""
        r = scene.r
        nested = self._nested.observe(r, self._nesting(scene))
        born = scene.kind(Kind.FORK, Kind.EXEC) & (r["result"] >= 0) & (r["a1"] != 0)
        births = np.flatnonzero(born & ~nested)
        writes = np.flatnonzero(self._writes(scene) & scene.judged & ~nested)
        for row in np.sort(np.concatenate([births[self._matter(scene, births)], writes])).tolist():
            if r["kind"][row] in (Kind.FORK, Kind.EXEC):
                self._learn(scene, row)
            elif target := self._numbers.get(_target(scene, row)):
                self._taken.adopt(target, int(r["seq"][row]))
        return self._taken.observe(r, np.zeros(0, np.intp))

    def _matter(self, scene: Scene, births: Rows) -> Mask:
        """Births of others' processes, and the agent's under a number that another's had."""
        known = np.fromiter(self._numbers, np.uint64, len(self._numbers))
        numbers, others = scene.r["a1"][births], ~scene.judged[births]
        verdict: Mask = others | np.isin(numbers, known) | np.isin(numbers, numbers[others])
        return verdict

    def _learn(self, scene: Scene, row: int) -> None:
        pid, start, number = scene.r[row][["pid", "start_ns", "a1"]].item()
        if scene.judged[row]:
            if self._numbers.get(number) != (pid, start):
                self._numbers.pop(number, None)
        elif len(self._numbers) < NUMBERS_MAX or number in self._numbers:
            self._numbers[number] = (pid, start)

    def _writes(self, scene: Scene) -> Mask:
        r = scene.r
        traced = scene.kind(Kind.PTRACE) & np.isin(r["a0"], WRITING) & (r["result"] >= 0)
        written = scene.kind(Kind.VM_ACCESS) & (r["a0"] == 1) & (r["result"] > 0)
        verdict: Mask = traced | written
        memory = [_MEMORY.match(s) is not None for s in scene.batch.strings]
        if any(memory):
            opened = scene.kind(Kind.OPEN, Kind.WRITE) & ((scene.acts & (Act.WRITE | Act.OPENED)) != 0)
            verdict |= opened & (r["result"] >= 0) & np.array(memory, np.bool_)[r["path"]]
        return verdict

    def _nesting(self, scene: Scene) -> Rows:
        """Births into a pid namespace that the agent made."""
        r = scene.r
        leaves = scene.kind(Kind.UNSHARE) & ((r["a0"] & CLONE_NEWPID) != 0) & (r["result"] >= 0)
        for row in np.flatnonzero(leaves).tolist():
            self._unshared.add((int(r["pid"][row]), int(r["start_ns"][row])))
        births = scene.kind(Kind.FORK)
        made = births & ((r["a0"] & CLONE_NEWPID) != 0)
        if self._unshared:
            starts = np.array([start for _, start in self._unshared], np.uint64)
            made |= births & np.isin(r["parent_start_ns"], starts)
        return np.flatnonzero(made)


def _target(scene: Scene, row: int) -> int:
    found = _MEMORY.match(scene.batch.text("path", row))
    return int(found[1]) if found else int(scene.r["a1"][row])
