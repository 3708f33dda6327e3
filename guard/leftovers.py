"""What the agent's phase leaves running when verify is about to begin."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from invigilator.ebpf.events import Phase
from invigilator.guard.facts import Survivor

GRACE_S = 0.5
"""For processes that were told to end, and put their things in order first, and for the last of what ends of
itself. Whoever stays longer was meant to stay. Paid only where something is left."""
_LOOK_S = 0.01


def leftovers(alive: Callable[[], Sequence[int]], phase: Phase, grace_s: float) -> list[Survivor]:
    """Those of the processes that `alive` lists (host pids, none that is dying) that do not end within
    `grace_s`. `phase`: the one that ends."""
    deadline = time.monotonic() + grace_s
    while (pids := alive()) and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_S))
    found = [Survivor.of(pid, phase) for pid in pids]
    return [one for one in found if one.start_ns]
