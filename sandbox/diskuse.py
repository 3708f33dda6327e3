"""How much of its disks' limits a sandbox used, between one look and the next.

The kernel counts no operation that it held back for a limit, in neither version of cgroups. It counts what
was done: where that was the limit for a while, the limit held something back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from invigilator.profiles.limits import IoValues

SHORTEST_LOOK_S = 1.0
"""Limits are a second's; in less, what the kernel lets through at once would look like more."""
NEAR = 0.9
"""Of a limit: who waits for it also does something else meanwhile."""

Counts = Mapping[tuple[str, str], int]
"""(disk, field of `IoValues`) → how much since the sandbox began."""


@dataclass(slots=True)
class DiskUse:
    """Of one sandbox. `hits`: how often a look found a limit used up since the one before; `maximum`: the
    limit that was last."""

    limits: IoValues
    since_s: float
    hits: int = 0
    maximum: int = 0
    _before: dict[tuple[str, str], int] = field(default_factory=dict)

    def look(self, now_s: float, counts: Counts) -> None:
        """What was done until `now_s`, of the clock of `since_s`."""
        elapsed_s = now_s - self.since_s
        if elapsed_s < SHORTEST_LOOK_S:
            return
        used_up = [
            limit
            for (disk, name), count in counts.items()
            if (limit := getattr(self.limits, name))
            and count - self._before.get((disk, name), 0) >= NEAR * limit * elapsed_s
        ]
        if used_up:
            self.hits, self.maximum = self.hits + 1, used_up[-1]
        self.since_s, self._before = now_s, dict(counts)


def counts_v1(serviced: str, service_bytes: str) -> dict[tuple[str, str], int]:
    """From blkio.throttle.io_serviced and blkio.throttle.io_service_bytes: lines `MAJOR:MINOR Read 12`."""
    found = {}
    for text, unit in ((service_bytes, "bytes"), (serviced, "ops")):
        for words in map(str.split, text.splitlines()):
            if len(words) == 3 and words[1] in ("Read", "Write"):
                found[words[0], f"{words[1].lower()}_{unit}_per_s"] = int(words[2])
    return found


def counts_v2(stat: str) -> dict[tuple[str, str], int]:
    """From io.stat: lines `MAJOR:MINOR rbytes=12 wbytes=34 rios=1 wios=2 …`."""
    names = {
        "rbytes": "read_bytes_per_s",
        "wbytes": "write_bytes_per_s",
        "rios": "read_ops_per_s",
        "wios": "write_ops_per_s",
    }
    found = {}
    for disk, *pairs in map(str.split, stat.splitlines()):
        for key, _, value in (pair.partition("=") for pair in pairs):
            if key in names:
                found[disk, names[key]] = int(value)
    return found
