"""How fast events come out of the rings, and how fast they reach the embedded store."""

from __future__ import annotations

import resource
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from invigilator.ebpf.events import EventBatch
from invigilator.ebpf.sensor import Sensor
from invigilator.guard import pipeline
from invigilator.guard.bench import place
from invigilator.guard.bench.measure import Section
from invigilator.incidents.spool import Spool
from invigilator.incidents.stamp import Origin, events_with_origin, wall_offset_ns
from invigilator.incidents.store import Store
from invigilator.sandbox.base import Sandbox
from invigilator.sandbox.process import ProcessBackend

WRITERS = 2
NAP_S = 0.02
FULL = 100_000
ROOMY = {"bulk_bytes": 128 << 20}
"""A ring of which one sandbox's share holds three times as many."""
OPENED = "/usr/share/bench/one/two/file"
OPENING = f"mkdir -p {Path(OPENED).parent}; touch {OPENED}; ", f"open 2000000000 {OPENED}"
"""As many as the machine makes: what to run before, and each loop's arguments."""
OFFERED = 165_000
FLOWING = "", f"flow 2000000000 /dev/shm {OFFERED // WRITERS}"
"""Opens and looks that fail, the cheapest that leave events, at a rate a tenth above the aim: what the
machine has left is for the way to the store."""


def draining(rounds: int, seconds: float = 10.0) -> Section:
    """Events a second of the reader's CPU while loops open and close as fast as they can: out of rings in
    which many wait, and every 20 ms, when what the machine's load leaves the loops decides what waits."""
    section = Section("ring to memory")
    for name, fill in ((f"{FULL:,} waiting", FULL), ("every 20 ms", 0)):
        rates, produced, lost, sizes = [], [], [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder, Sensor.open(**ROOMY) as sensor:
                backend = ProcessBackend(Path(folder) / "home", stock=1)
                try:
                    with place.started(backend, sensor) as box:
                        slot, got = _take(
                            sensor, box, Path(folder), seconds, OPENING, lambda _batch: None, fill
                        )
                        loss = sensor.loss(slot)
                finally:
                    backend.close()
            rates.append(got.events / got.cpu)
            produced.append(loss.produced / seconds)
            lost.append(float(loss.lost))
            sizes.append(got.events / max(1, got.batches))
        section.add(
            f"{name}: events a second of reader CPU",
            "events",
            rates,
            at_least=5_000_000,
            note=f"{statistics.median(sizes):,.0f} events a batch",
        )
        section.add(f"{name}: events made a second of wall time", "events", produced)
        section.add(f"{name}: events lost", "events", lost, at_most=0)
    return section


def to_store(seconds: float = 60.0) -> Section:
    """Rows a second from ring to spool to chDB, and the growth of this process meanwhile."""
    section = Section("ring to embedded store")
    with tempfile.TemporaryDirectory() as folder, Sensor.open() as sensor:
        store = Store.open(Path(folder) / "store")
        store.migrate()
        spool = Spool(Path(folder) / "spool")
        backend = ProcessBackend(Path(folder) / "home", stock=1)
        shipper = _Shipper(store, spool)
        held: list[EventBatch] = []

        def keep(batch: EventBatch) -> None:
            held.append(batch)
            if sum(map(len, held)) >= pipeline.SEGMENT_ROWS:
                shipper.put(EventBatch.concat(held))
                held.clear()

        try:
            with place.started(backend, sensor) as box:
                began = time.monotonic()
                before = _cpu_s()
                slot, _ = _take(sensor, box, Path(folder), seconds, FLOWING, keep)
                if held:
                    shipper.put(EventBatch.concat(held))
                shipper.finish()
                took, spent = time.monotonic() - began, _cpu_s() - before
                loss = sensor.loss(slot)
            stored = int(store.select("SELECT count() AS n FROM events")["n"][0].as_py())
        finally:
            backend.close()
            store.close()
    section.add("events made a second while loops ran", "events", [loss.produced / seconds])
    section.add("rows stored a second", "rows", [stored / took], at_least=150_000, note=f"{stored:,} rows")
    section.add("rows stored a second of CPU, reader and store together", "rows", [stored / spent])
    section.add("events lost", "events", [float(loss.lost)], at_most=0)
    early, late = shipper.resident[len(shipper.resident) // 2], shipper.resident[-1]
    section.add("resident memory, end ÷ middle", "×", [late / early], at_most=1.1, note=f"{late >> 20} MiB")
    return section


class _Shipper:
    """Spools and ingests each batch; notes resident memory after each."""

    def __init__(self, store: Store, spool: Spool) -> None:
        self._store, self._spool = store, spool
        self._identity = uuid.uuid4()
        self._origin = Origin("bench", "bench", 1, wall_offset_ns())
        self._queue: list[EventBatch] = []
        self._ready = threading.Condition()
        self._ended = False
        self.resident: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def put(self, batch: EventBatch) -> None:
        """Hand over one segment's events."""
        with self._ready:
            self._queue.append(batch)
            self._ready.notify()

    def finish(self) -> None:
        """Wait until everything is in the store."""
        with self._ready:
            self._ended = True
            self._ready.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._queue or self._ended)
                if not self._queue:
                    return
                batch = self._queue.pop(0)
            table = events_with_origin(batch.to_arrow(self._identity.bytes), self._origin)
            segment = self._spool.append("events", table, self._identity)
            self._store.ingest(segment.read_bytes(), segment)
            self._spool.acknowledge(segment)
            self.resident.append(resident_bytes())


def resident_bytes() -> int:
    """This process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


@dataclass(slots=True)
class _Taken:
    """What was drained: events, in how many batches, for how much of the reader's CPU (s)."""

    events: int = 0
    batches: int = 0
    cpu: float = 0.0


def _take(
    sensor: Sensor,
    box: Sandbox,
    folder: Path,
    seconds: float,
    load: tuple[str, str],
    consume: Callable[[EventBatch], None],
    fill: int = 0,
) -> tuple[int, _Taken]:
    """Drain while loops run in the sandbox: its slot, and what was taken. `fill`: how many events must wait
    before they are drained; 0: whatever is there after a nap."""
    box.write_file("/usr/bin/bench-loops", place.compile_loops(folder).read_bytes(), 0o755)
    before, arguments = load
    script = before + f"timeout {seconds} /usr/bin/bench-loops {arguments} & " * WRITERS
    writer = threading.Thread(target=place.output_of, args=(box, ["bash", "-c", script + "wait; true"]))
    writer.start()
    taken, slot, ended = _Taken(), 0, False
    while not ended:
        time.sleep(NAP_S)
        ended = not writer.is_alive()
        waiting = _waiting(sensor, slot, taken.events) if slot else 1
        if not ended and waiting < fill and slot:
            continue
        slot = _drain(sensor, taken, consume, None if ended else waiting) or slot
    writer.join()
    return slot, taken


def _waiting(sensor: Sensor, slot: int, taken: int) -> int:
    """Events that were made and neither taken nor lost."""
    loss = sensor.loss(slot)
    return loss.produced - loss.lost - taken


def _drain(
    sensor: Sensor, taken: _Taken, consume: Callable[[EventBatch], None], waiting: int | None
) -> int | None:
    """Drain what was waiting, not what the loops make meanwhile, as that comes in ever smaller batches; with
    None all there is. The slot, if any event came."""
    slot, wanted = None, None if waiting is None else taken.events + waiting
    while wanted is None or taken.events < wanted:
        before = time.thread_time()
        batch = sensor.drain(0.0)
        taken.cpu += time.thread_time() - before
        if not len(batch):
            break
        taken.events += len(batch)
        taken.batches += 1
        slot = int(batch.records["slot"][0])
        consume(batch)
    return slot
