"""Rings → events in order, with their strings.

The only reader of the rings. What was taken out and may not be handed out yet (a lower number may still come,
or a string) is kept; the kernel is told how much of each sandbox's share is free again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from .events import EVENT, EventBatch, Records, rows
from .layout import KINDS
from .loader import Kernel
from .order import SlotOrder
from .ring import FRAME, STRING_RECORD, Ring, Waker
from .strings import SERIALS, StringTable

MOST_EVENTS = 1 << 13
"""Events of one ring that one pull takes at most: as many as stay in the CPU's cache on their way."""
FEW_EVENTS = 512
EPOCH_STRINGS = 1 << 18
"""Strings after which the kernel is told to send those still in use again, and the old are forgotten."""
EPOCH_GRACE_S = 2.0

Orders = Callable[[int], SlotOrder | None]


class Reader:
    """Takes events and strings out of the kernel's rings. `orders` gives the order of a slot, or None."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int], slots: Records, orders: Orders) -> None:
        self.table = StringTable()
        self._rings = [Ring(kernel.map_fd(name), sizes[name]) for name in ("precious", "bulk")]
        self._strings = Ring(kernel.map_fd("strings"), sizes["strings"])
        self._waker = Waker([*self._rings, self._strings])
        self._orders = orders
        self._seen = slots["seen"]
        self._string_seen = slots["string_seen"]
        self._lost = slots["lost"]
        self._pending: Records = np.empty(0, EVENT)
        self._epoch = kernel.variable(".data", "string_epoch", np.uint32)
        self._serial = kernel.variable(".bss", "string_serial", np.uint32)
        self._epoch_serial = 0
        self._forget: tuple[float, int] | None = None
        self._mark = (0.0, [0, 0])
        self._complete_to = 0.0

    def drain(self) -> EventBatch:
        """What may be handed out now, at most some ten thousand events; empty where there is nothing."""
        self.pull()
        self._turn_epoch()
        if not len(self._pending):
            return EventBatch.empty()
        self._pending = _in_order(self._pending)
        places = self.table.places(self._pending)
        missing = self.table.missing(places)
        hold = self._held(self._pending, missing)
        if hold is None:
            ready, self._pending = self._pending, np.empty(0, EVENT)
        else:
            ready, self._pending = rows(self._pending, ~hold), rows(self._pending, hold)
            places = places[~hold]
            missing = missing if missing is None else missing[~hold]
        return self.table.localise(ready, places, missing) if len(ready) else EventBatch.empty()

    def pull(self) -> None:
        """Out of the rings into `_pending`: events first, so that every string they name is in before use."""
        # A pull takes only so much of each ring: what fills a gap may still lie in the other.
        if all(ring.taken() >= end for ring, end in zip(self._rings, self._mark[1], strict=True)):
            self._complete_to = self._mark[0]
            self._mark = (time.monotonic(), [ring.produced() for ring in self._rings])
        ready = [ring.ready(MOST_EVENTS) for ring in self._rings]
        count = sum(map(len, ready))
        if count:
            taken = np.empty(len(self._pending) + count, FRAME["event"])
            at = len(self._pending)
            taken[:at] = self._pending.view(FRAME["event"])
            for ring, frames in zip(self._rings, ready, strict=True):
                taken[at : at + len(frames)] = frames["event"]
                at += len(frames)
                ring.release(len(frames))
            self._pending = taken.view(EVENT)
            self._count(self._pending[-count:])
        self._take_strings()

    def waiting(self) -> bool:
        """Whether any event is in the rings or held."""
        return bool(len(self._pending)) or any(ring.waiting() for ring in self._rings)

    def holds(self, slot: int) -> bool:
        """Whether events of a slot were taken out and not yet handed out."""
        return bool((self._pending["slot"] == slot).any())

    def sleep(self, timeout_s: float) -> bool:
        """Until the kernel wakes the reader, or the time is over; whether `nudge` ended it."""
        return self._waker.sleep(timeout_s)

    def nudge(self) -> None:
        """End the sleep that lasts, or the next one; from any thread."""
        self._waker.nudge()

    def renew_strings(self) -> None:
        """Let the kernel send strings in use again, and forget the old ones a while later."""
        self._epoch_serial = int(self._serial[0])
        self._forget = (time.monotonic() + EPOCH_GRACE_S, (self._epoch_serial + 1) % SERIALS)
        self._epoch[0] += 1

    def close(self) -> None:
        """Give the descriptors back."""
        self._waker.close()

    def _count(self, records: Records) -> None:
        """Tell the kernel what came out, by slot and kind."""
        keys = records["slot"] * KINDS + records["kind"] % KINDS
        if len(keys) < FEW_EVENTS:
            where, counts = np.unique(keys, return_counts=True)
        else:
            bins = np.bincount(keys)
            where = np.flatnonzero(bins)
            counts = bins[where]
        self._seen[where // KINDS, where % KINDS] += counts.astype(np.uint32)

    def _take_strings(self) -> None:
        seen: dict[int, int] = {}
        for serial, slot, dev, role, raw in self._strings.take_strings():
            self.table.add(serial, slot, dev, role, raw)
            seen[slot] = seen.get(slot, 0) + len(raw) + STRING_RECORD.itemsize
        for slot, count in seen.items():
            self._string_seen[slot] += count

    def _held(self, pending: Records, missing: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_] | None:
        """Which of the sorted events must wait, shape (n,); None where none must."""
        slots, seqs, now = pending["slot"], pending["seq"], time.monotonic()
        starts = [0, *(np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist(), len(pending)]
        hold: npt.NDArray[np.bool_] | None = None
        for start, end in itertools.pairwise(starts):
            slot = int(slots[start])
            order = self._orders(slot)
            if order is None:
                continue
            lost = int(self._lost[slot, :, :2].sum())
            absent = None if missing is None else missing[start:end]
            count = order.ready(seqs[start:end], absent, lost, now, self._complete_to)
            if start + count < end:
                hold = np.zeros(len(pending), np.bool_) if hold is None else hold
                hold[start + count : end] = True
        return hold

    def _turn_epoch(self) -> None:
        if self._forget is not None:
            due, serial = self._forget
            if time.monotonic() >= due and not len(self._pending):
                self.table.drop_before(serial)
                self._forget = None
        elif (int(self._serial[0]) - self._epoch_serial) % (1 << 32) > EPOCH_STRINGS:
            self.renew_strings()


def _in_order(records: Records) -> Records:
    """By (slot, seq); already so where one sandbox runs on one CPU."""
    keys = (records["slot"].astype(np.uint64) << np.uint64(48)) | records["seq"]
    if bool((keys[1:] > keys[:-1]).all()):
        return records
    return rows(records, np.argsort(keys, kind="stable"))
