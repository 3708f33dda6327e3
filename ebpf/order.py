"""Which events of one sandbox may be handed out: those before the first number that may still come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SETTLE_S = 0.005
"""How old a gap must be before the kernel's loss count may explain it: a program between taking its number
and sending its event needs microseconds."""
GIVE_UP_S = 1.0
"""How old a gap must be to be called vanished though nothing explains it."""


@dataclass(slots=True)
class SlotOrder:
    """The numbers of one sandbox: handed out up to `delivered`, of which `settled` never came."""

    delivered: int = 0
    settled: int = 0
    vanished: int = 0
    waiting_since: float | None = None

    def ready(
        self, seqs: npt.NDArray[np.uint64], missing: npt.NDArray[np.bool_] | None, lost: int, now: float
    ) -> int:
        """How many of the sorted events `seqs`, shape (n,), may be handed out.

        `missing`: whose strings are not in (None: all are); `lost`: the kernel's count of lost events; `now`
        in seconds.
        """
        count = len(seqs)
        absent = missing is not None and bool(missing.any())
        gaps = int(seqs[-1]) - self.delivered - count
        if gaps <= 0 and not absent:
            self.delivered, self.waiting_since = int(seqs[-1]), None
            return count
        if self.waiting_since is None:
            self.waiting_since = now
        age = now - self.waiting_since
        explained = age >= SETTLE_S and self.settled + self.vanished + gaps <= lost + self.vanished
        if (explained and not absent) or age >= GIVE_UP_S:
            if explained or gaps <= 0:
                self.settled += max(gaps, 0)
            else:
                known = max(0, lost - self.settled)
                self.settled += known
                self.vanished += gaps - known
            self.delivered, self.waiting_since = int(seqs[-1]), None
            return count
        steps = np.diff(seqs, prepend=np.uint64(self.delivered)) != 1
        stop = steps if missing is None else steps | missing
        prefix = int(np.argmax(stop)) if stop.any() else count
        if prefix:
            self.delivered = int(seqs[prefix - 1])
        return prefix

    def watermark(self, produced: int, lost: int, held: bool) -> int:
        """The highest number up to which all is handed out or known to be lost."""
        tail = produced - self.delivered
        if held or tail <= 0 or lost - self.settled < tail:
            return self.delivered
        return produced
