"""Ring to spool to detectors: the one thread of a node that reads the kernel's rings.

What the rings hold is taken often, so that they stay empty, and stored in larger pieces, so that a segment is
worth its fsync. A detector sees an event only once it is in the spool: no verdict rests on what a crash could
take back.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from invigilator.detectors.engine import Engine
from invigilator.ebpf.events import EventBatch
from invigilator.ebpf.sensor import Sensor
from invigilator.incidents.segment import Segment
from invigilator.incidents.spool import Spool, SpoolError
from invigilator.incidents.stamp import Origin, events_with_origin

_log = logging.getLogger("invigilator.pipeline")

DRAIN_S = 0.25
SETTLE_DRAIN_S = 0.02
"""How long one wait for the rings lasts; the second while someone waits for a sandbox's end."""
GATHER_S = 0.1
"""How long events gather in the rings while more and more come; a ring that fills ends the wait."""
STORE_EVERY_S = 1.0
FULL_BATCH = 4096
"""Events after which more are taken at once."""
SEGMENT_ROWS = 200_000
"""Events that make a segment before `STORE_EVERY_S` is over, and the most that one segment takes."""
HELD_ROWS_MAX = 1_000_000
"""Events kept in memory while the spool cannot take them (192 bytes each, and their strings). Past that the
rings are left alone; they overflow, and the loss is counted."""
RETRY_S = 0.5
SPOOL_PATIENCE_S = 10.0
"""How long a verdict waits for a spool that takes nothing."""


@dataclass(slots=True)
class Watched:
    """One sandbox in the pipeline.

    `stored_rows` and `shipped_rows` count its events, `segments` are those that they are in. `settling`
    counts who waits for its end, `watermark` is how far it was read meanwhile. `broken` says why its engine
    failed, if it did.
    """

    slot: int
    sandbox_id: uuid.UUID
    engine: Engine
    origin: Origin
    held: list[EventBatch] = field(default_factory=list)
    stored_rows: int = 0
    shipped_rows: int = 0
    segments: list[uuid.UUID] = field(default_factory=list)
    settling: int = 0
    watermark: int = 0
    broken: str | None = None


class Pipeline:
    """Takes events from the sensor, stores them, feeds each sandbox's engine.

    `on_stored` is called, from the pipeline's thread, after a segment was stored.
    """

    def __init__(self, sensor: Sensor, spool: Spool, on_stored: Callable[[], None]) -> None:
        self._sensor = sensor
        self._spool = spool
        self._on_stored = on_stored
        self._watched: dict[int, Watched] = {}
        self._changed = threading.Condition()
        self._held_rows = 0
        self._held_since = 0.0
        self._settling = 0
        self._stopping = False
        self._trouble: str | None = None
        self._trouble_since = 0.0
        self._beside: Callable[[EventBatch], None] = lambda batch: None
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def beside(self, take: Callable[[EventBatch], None]) -> None:
        """Have `take` called after each drain, with what it brought; before `start`."""
        self._beside = take

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is held, and end."""
        self._stopping = True
        self._sensor.nudge()
        self._thread.join(timeout=30)

    @property
    def alive(self) -> bool:
        """Whether events are still taken: a node whose pipeline ended watches nothing."""
        return self._thread.is_alive()

    @property
    def trouble(self) -> str | None:
        """Why the spool takes nothing at the moment, or None."""
        return self._trouble

    def attach(self, slot: int, sandbox_id: uuid.UUID, engine: Engine, origin: Origin) -> Watched:
        """Take a sandbox's events from now on; before it is armed."""
        watched = Watched(slot, sandbox_id, engine, origin)
        with self._changed:
            self._watched[slot] = watched
        return watched

    def detach(self, slot: int) -> None:
        """Forget a sandbox."""
        with self._changed:
            if gone := self._watched.pop(slot, None):
                self._held_rows -= sum(map(len, gone.held))

    def settle(self, slot: int, timeout_s: float) -> bool:
        """Wait until all that the sandbox has produced by now is stored and judged.

        False on timeout, or where the spool has taken nothing for `SPOOL_PATIENCE_S`.
        """
        produced = self._sensor.loss(slot).produced
        with self._changed:
            watched = self._watched[slot]
            watched.settling += 1
            self._settling += 1
            self._sensor.nudge()
            try:
                self._changed.wait_for(lambda: _settled(watched, produced) or self._stuck(), timeout_s)
                return _settled(watched, produced)
            finally:
                watched.settling -= 1
                self._settling -= 1

    def shipped(self, segment: Segment) -> None:
        """The store has acknowledged a segment of events."""
        with self._changed:
            for watched in self._watched.values():
                if watched.sandbox_id in segment.ranges:
                    watched.shipped_rows += segment.ranges[watched.sandbox_id].rows

    def _stuck(self) -> bool:
        return self._trouble is not None and time.monotonic() - self._trouble_since > SPOOL_PATIENCE_S

    def _run(self) -> None:
        try:
            self._read_until_stopped()
        except Exception:
            _log.exception("the pipeline ended")
            raise

    def _read_until_stopped(self) -> None:
        retry_at = 0.0
        busy = False
        while True:
            stopping = self._stopping
            if self._held_rows < HELD_ROWS_MAX:
                batch = self._drain(busy)
                busy = 0 < len(batch) < FULL_BATCH
                self._hold(batch)
                self._beside(batch)
            else:
                time.sleep(DRAIN_S)
            now = time.monotonic()
            while self._held_rows and now >= retry_at and (stopping or self._due(now)):
                if not self._store():
                    retry_at = now + RETRY_S
            if not self._held_rows:
                self._trouble = None
            self._mark_settling()
            if stopping:
                return

    def _drain(self, busy: bool) -> EventBatch:
        if self._settling:
            return self._sensor.drain(SETTLE_DRAIN_S)
        return self._sensor.drain(DRAIN_S, gather_s=GATHER_S if busy else 0.0)

    def _mark_settling(self) -> None:
        """Note how far the settling sandboxes were read; here, where no batch is between ring and `held`."""
        if not self._settling:
            return
        with self._changed:
            for watched in self._watched.values():
                if watched.settling:
                    watched.watermark = self._sensor.drained_to(watched.slot)
            self._changed.notify_all()

    def _hold(self, batch: EventBatch) -> None:
        if not len(batch):
            return
        with self._changed:
            if not self._held_rows:
                self._held_since = time.monotonic()
            for slot, part in batch.by_slot():
                if watched := self._watched.get(slot):
                    watched.held += _pieces(part)
                    self._held_rows += len(part)

    def _due(self, now: float) -> bool:
        old = now - self._held_since >= STORE_EVERY_S
        return self._settling > 0 or old or self._held_rows >= SEGMENT_ROWS

    def _store(self) -> bool:
        """Store what is held, up to one segment, and feed the engines; False where the spool refuses."""
        chosen = self._choose()
        parts = [(watched, EventBatch.concat(watched.held[:n])) for watched, n in chosen]
        try:
            segment = self._append(parts)
        except SpoolError as error:
            if self._trouble is None:
                _log.error("the spool takes nothing: %s", error)
                self._trouble_since = time.monotonic()
            self._trouble = str(error)
            return False
        self._trouble = None
        for watched, batch in parts:
            _judge(watched, batch)
        with self._changed:
            for (watched, n), (_, batch) in zip(chosen, parts, strict=True):
                watched.stored_rows += len(batch)
                watched.segments.append(segment.id)
                del watched.held[:n]
            self._held_rows = sum(len(batch) for w in self._watched.values() for batch in w.held)
            self._changed.notify_all()
        self._on_stored()
        return True

    def _choose(self) -> list[tuple[Watched, int]]:
        """Sandboxes and how many of their held batches go into the next segment."""
        chosen: list[tuple[Watched, int]] = []
        room = SEGMENT_ROWS
        with self._changed:
            for watched in self._watched.values():
                sizes = np.cumsum([len(batch) for batch in watched.held])
                if fitting := int(np.searchsorted(sizes, room, side="right")):
                    chosen.append((watched, fitting))
                    room -= int(sizes[fitting - 1])
        return chosen

    def _append(self, parts: list[tuple[Watched, EventBatch]]) -> Segment:
        tables = [events_with_origin(batch.to_arrow(w.sandbox_id.bytes), w.origin) for w, batch in parts]
        owner = parts[0][0].sandbox_id if len(parts) == 1 else None
        return self._spool.append("events", pa.concat_tables(tables), owner)


def _settled(watched: Watched, produced: int) -> bool:
    return not watched.held and watched.watermark >= produced


def _pieces(batch: EventBatch) -> list[EventBatch]:
    """The batch in parts that each fit a segment."""
    starts = range(0, len(batch), SEGMENT_ROWS)
    return [EventBatch(batch.records[at : at + SEGMENT_ROWS], batch.strings) for at in starts]


def _judge(watched: Watched, batch: EventBatch) -> None:
    """Feed the engine; one that fails ends in the sandbox's report, not in the node's end."""
    try:
        watched.engine.feed(batch)
    except Exception as error:
        _log.exception("the engine of sandbox %s failed", watched.sandbox_id)
        watched.broken = f"{type(error).__name__}: {error}"
