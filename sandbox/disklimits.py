"""A sandbox's limits of disks: put in force on those that its files lie on, looked at, and told of.

With v1 a disk's limit holds what a process itself reads, writes past the page cache, or waits for (fsync);
what it leaves to the kernel to write later is nobody's there. With v2 it holds that too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from invigilator.profiles.limits import IoValues
from invigilator.sandbox import diskuse
from invigilator.sandbox.base import LimitHit
from invigilator.sandbox.cgroupfiles import read, write
from invigilator.sandbox.disks import Disks


@dataclass(slots=True)
class DiskLimits:
    """`folder`: the cgroup that has them; `v1`: whether it is one of blkio."""

    folder: Path
    v1: bool
    limits: IoValues
    disks: Disks
    _use: diskuse.DiskUse | None = None

    def put(self) -> None:
        """In force, as far as the kernel lets; see `in_force`."""
        for file, line in self._lines():
            with contextlib.suppress(OSError):
                write(f"{self.folder}/{file}", line)
        self._use = diskuse.DiskUse(self.limits, time.monotonic())

    def in_force(self) -> bool:
        """Whether every disk that the sandbox's files lie on is limited."""
        return self.disks.complete and all(
            line in read(self.folder / file).splitlines()
            for file, line in self._lines()
            if not line.endswith(" 0")  # of v1: no limit, which is not listed
        )

    def hits(self) -> list[LimitHit]:
        """How often a look found a limit used up."""
        if self._use is None:
            return []
        self._use.look(time.monotonic(), self._counts())
        return [LimitHit("io", self._use.hits, self._use.maximum)]

    def _lines(self) -> Iterator[tuple[str, str]]:
        reading = replace(self.limits, write_bytes_per_s=None, write_ops_per_s=None)
        for disks, limits in ((self.disks.written, self.limits), (self.disks.read, reading)):
            for disk in disks:
                if self.v1:
                    yield from limits.v1(disk.number).items()
                else:
                    yield "io.max", limits.v2(disk.number)

    def _counts(self) -> diskuse.Counts:
        if self.v1:
            names = ("blkio.throttle.io_serviced", "blkio.throttle.io_service_bytes")
            return diskuse.counts_v1(*(read(self.folder / name) for name in names))
        return diskuse.counts_v2(read(self.folder / "io.stat"))
