"""Which events of one sandbox may be handed out: those before the first number that may still come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SETTLE_S = 0.005
"""How long a program may take between drawing its number and counting its loss (it needs microseconds)."""
GIVE_UP_S = 1.0
"""How long an event waits for a string that the kernel said it had sent, or for a lower number that no loss
explains: a virtual processor may be taken away in the middle of a program."""

Numbers = npt.NDArray[np.uint64]
Where = npt.NDArray[np.bool_]


@dataclass(slots=True)
class SlotOrder:
    """The numbers of one sandbox: handed out up to `delivered`; `settled` of them the kernel lost and
    counted, `vanished` never came though nothing counted them. `held`: none is handed out for now."""

    delivered: int = 0
    settled: int = 0
    vanished: int = 0
    noticed: float | None = None
    horizon: int = 0
    held: bool = False

    def take_whole(self, last: int, count: int) -> bool:
        """Hand out `count` events up to number `last`, where none is missing between them and the last."""
        if last - self.delivered != count:
            return False
        self.delivered, self.noticed = last, None
        return True

    def ready(self, seqs: Numbers, missing: Where | None, lost: int, now: float, complete_to: float) -> int:
        """How many of the sorted events `seqs`, shape (n,), may be handed out.

        `missing`: whose strings are not in (None: all are); `lost`: the kernel's count of lost events; `now`
        in seconds; `complete_to`: all that was sent before that moment has been taken out of the rings.
        """
        count = len(seqs)
        if (missing is None or not missing.any()) and self.take_whole(int(seqs[-1]), count):
            return count
        if self.noticed is None or self.horizon <= self.delivered:  # a gap of its own, with its own age
            self.noticed, self.horizon = now, int(seqs[-1])
        age = now - self.noticed
        if complete_to >= self.noticed + SETTLE_S and (age >= GIVE_UP_S or self._is_explained(seqs, lost)):
            return self._settle(seqs, missing, lost, age)
        stop = np.diff(seqs, prepend=np.uint64(self.delivered)) != 1
        if missing is not None:
            stop |= missing
        prefix = int(np.argmax(stop)) if stop.any() else count
        if prefix:
            self.delivered = int(seqs[prefix - 1])
        return prefix

    def watermark(self, produced: int, lost: int, held: bool) -> int:
        """The highest number up to which all is handed out or known to be lost.

        `lost` must have been read before `produced`.
        """
        tail = produced - self.delivered
        if held or tail <= 0 or lost - self.settled < tail:
            return self.delivered
        return produced

    def _is_explained(self, seqs: Numbers, lost: int) -> bool:
        """Whether as many events were counted as lost as are not here, up to the horizon."""
        here = int(np.searchsorted(seqs, np.uint64(self.horizon), "right"))
        return self.horizon - self.delivered - here <= lost - self.settled

    def _settle(self, seqs: Numbers, missing: Where | None, lost: int, age: float) -> int:
        """Up to the highest number that was known when the gap was noticed, what is not here never comes."""
        count = int(np.searchsorted(seqs, np.uint64(self.horizon), "right"))
        last = self.horizon
        if missing is not None and missing[:count].any() and age < GIVE_UP_S:
            count = int(np.argmax(missing[:count]))
            last = int(seqs[count - 1]) if count else self.delivered
        else:
            self.noticed = None
        gaps = last - self.delivered - count
        known = min(gaps, max(0, lost - self.settled))
        self.settled += known
        self.vanished += gaps - known
        self.delivered = last
        return count
