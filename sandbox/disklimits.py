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
        self._write(self.limits)
        self._use = diskuse.DiskUse(self.limits, time.monotonic())

    def lift(self) -> None:
        """None, for now: a process that waits for a disk can neither be halted nor end before it has what it
        waits for, which at the limit may take as long as the sandbox likes."""
        self._write(IoValues())

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """None inside."""
        self.lift()
        try:
            yield
        finally:
            self._write(self.limits)

    def in_force(self) -> bool:
        """Whether every disk that the sandbox's files lie on is limited."""
        return self.disks.complete and all(
            line in read(self.folder / file).splitlines()
            for file, line in self._lines(self.limits)
            if not _limits_nothing(line)  # which is not listed
        )

    def hits(self) -> list[LimitHit]:
        """How often a look found a limit used up."""
        if self._use is None:
            return []
        self._use.look(time.monotonic(), self._counts())
        return [LimitHit("io", self._use.hits, self._use.maximum)]

    def _write(self, limits: IoValues) -> None:
        for file, line in self._lines(limits):
            with contextlib.suppress(OSError):
                write(f"{self.folder}/{file}", line)

    def _lines(self, limits: IoValues) -> Iterator[tuple[str, str]]:
        reading = replace(limits, write_bytes_per_s=None, write_ops_per_s=None)
        for disks, values in ((self.disks.written, limits), (self.disks.read, reading)):
            for disk in disks:
                if self.v1:
                    yield from values.v1(disk.number).items()
                else:
                    yield "io.max", values.v2(disk.number)

    def _counts(self) -> diskuse.Counts:
        if self.v1:
            names = ("blkio.throttle.io_serviced", "blkio.throttle.io_service_bytes")
            return diskuse.counts_v1(*(read(self.folder / name) for name in names))
        return diskuse.counts_v2(read(self.folder / "io.stat"))


def _limits_nothing(line: str) -> bool:
    return line.endswith(" 0") or line.count("=max") == len(line.split()) - 1
