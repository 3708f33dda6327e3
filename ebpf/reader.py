"""Rings → events in order, with their strings.

The only reader of the rings. What was taken out and may not be handed out yet (a lower number may still come,
or a string) is kept; the kernel is told how much of each sandbox's share is free again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .events import EVENT, EventBatch, Records, joined, rows
from .layout import KINDS
from .loader import Kernel
from .order import SlotOrder
from .ring import STRING_RECORD, Ring, Waker
from .strings import SERIALS, StringTable

MOST_EVENTS = 1 << 13
"""Events of one ring that one pull takes at most: as many as stay in the CPU's cache on their way."""
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
        places = self.table.places(self._pending)
        missing = self.table.missing(places)
        ready = self._ready(self._pending, missing)
        if ready is None:
            out, self._pending = self._pending, np.empty(0, EVENT)
        else:
            held = slice(ready.stop, None) if isinstance(ready, slice) else ~ready
            # A copy: what is held for long must not keep the memory of all that came with it.
            out, self._pending = rows(self._pending, ready), rows(self._pending, held).copy()
            places = places[ready]
            missing = None if missing is None else missing[ready]
        return self.table.localise(out, places, missing) if len(out) else EventBatch.empty()

    def pull(self) -> None:
        """Out of the rings into `_pending`: events first, so that every string they name is in before use."""
        # A pull takes only so much of each ring: what fills a gap may still lie in the other.
        if all(ring.taken() >= end for ring, end in zip(self._rings, self._mark[1], strict=True)):
            self._complete_to = self._mark[0]
            self._mark = (time.monotonic(), [ring.produced() for ring in self._rings])
        found = [(ring, frames) for ring in self._rings if len(frames := ring.ready(MOST_EVENTS))]
        if found:
            fresh = [frames["event"].view(EVENT) for _, frames in found]
            for events in fresh:
                self._count(events)
            self._pending = _merged([self._pending, *fresh])
            for ring, frames in found:
                ring.release(len(frames))
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
        slots, kinds = records["slot"], np.where(records["kind"] < KINDS, records["kind"], 0)
        first = int(slots[0])
        if (slots == first).all():
            self._seen[first] += np.bincount(kinds, minlength=KINDS).astype(np.uint32)
            return
        where, counts = np.unique(slots * np.uint32(KINDS) + kinds, return_counts=True)
        self._seen[where // KINDS, where % KINDS] += counts.astype(np.uint32)

    def _take_strings(self) -> None:
        seen: dict[int, int] = {}
        for serial, slot, dev, role, raw in self._strings.take_strings():
            self.table.add(serial, slot, dev, role, raw)
            seen[slot] = seen.get(slot, 0) + len(raw) + STRING_RECORD.itemsize
        for slot, count in seen.items():
            self._string_seen[slot] += count

    def _ready(
        self, pending: Records, missing: npt.NDArray[np.bool_] | None
    ) -> slice | npt.NDArray[np.bool_] | None:
        """Which of the sorted events may be handed out; None: all."""
        slots, seqs, now = pending["slot"], pending["seq"], time.monotonic()
        if slots[0] == slots[-1]:
            count = self._first_of(int(slots[0]), seqs, missing, now)
            return None if count == len(pending) else slice(0, count)
        starts = [0, *(np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist(), len(pending)]
        ready = np.ones(len(pending), np.bool_)
        for start, end in itertools.pairwise(starts):
            absent = None if missing is None else missing[start:end]
            count = self._first_of(int(slots[start]), seqs[start:end], absent, now)
            ready[start + count : end] = False
        return None if ready.all() else ready

    def _first_of(
        self, slot: int, seqs: npt.NDArray[np.uint64], missing: npt.NDArray[np.bool_] | None, now: float
    ) -> int:
        """How many of a slot's sorted events may be handed out."""
        order = self._orders(slot)
        if order is not None and order.held:
            return 0
        if order is None or (missing is None and order.take_whole(int(seqs[-1]), len(seqs))):
            return len(seqs)
        lost = int(self._lost[slot, :, :2].sum())
        return order.ready(seqs, missing, lost, now, self._complete_to)

    def _turn_epoch(self) -> None:
        if self._forget is not None:
            due, serial = self._forget
            if time.monotonic() >= due and not len(self._pending):
                self.table.drop_before(serial)
                self._forget = None
        elif (int(self._serial[0]) - self._epoch_serial) % (1 << 32) > EPOCH_STRINGS:
            self.renew_strings()


def _merged(parts: Sequence[Records]) -> Records:
    """All events in memory of their own, by (slot, seq)."""
    parts = [part for part in parts if len(part)]
    keys = np.concatenate([_keys(part) for part in parts])
    if bool((keys[1:] > keys[:-1]).all()):
        return joined(parts)
    order = np.argsort(keys, kind="stable")
    return rows(parts[0] if len(parts) == 1 else joined(parts), order)


def _keys(records: Records) -> npt.NDArray[np.uint64]:
    keys: npt.NDArray[np.uint64] = records["slot"].astype(np.uint64)
    keys <<= np.uint64(48)
    keys |= records["seq"]
    return keys
