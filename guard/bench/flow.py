"""How fast events come out of the rings, and how fast they reach the embedded store."""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from invigilator.ebpf.events import EventBatch
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.bench import place
from invigilator.guard.bench.measure import Section
from invigilator.incidents.spool import Spool
from invigilator.incidents.stamp import Origin, events_with_origin, wall_offset_ns
from invigilator.incidents.store import Store
from invigilator.sandbox.base import Sandbox
from invigilator.sandbox.process import ProcessBackend

WRITERS = 2
SEGMENT_ROWS = 200_000
OPENED = "/usr/share/bench/one/two/file"


def draining(rounds: int, seconds: float = 10.0) -> Section:
    """Events a second of the reader's CPU while two loops open and close as fast as they can."""
    section = Section("ring to memory")
    rates, produced, lost = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, Sensor.open() as sensor:
            backend = ProcessBackend(Path(folder) / "home", stock=1)
            try:
                with place.started(backend, sensor) as box:
                    slot, taken, cpu = _take(sensor, box, Path(folder), seconds, lambda _batch: None)
                    loss = sensor.loss(slot)
            finally:
                backend.close()
        rates.append(taken / cpu)
        produced.append(loss.produced / seconds)
        lost.append(float(loss.lost))
    section.add("events drained a second of reader CPU", "events", rates, at_least=5_000_000)
    section.add("events made a second of wall time", "events", produced)
    section.add("events lost at that rate", "events", lost, at_most=0)
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
            if sum(map(len, held)) >= SEGMENT_ROWS:
                shipper.put(EventBatch.concat(held))
                held.clear()

        try:
            with place.started(backend, sensor) as box:
                began = time.monotonic()
                slot, _, _ = _take(sensor, box, Path(folder), seconds, keep)
                if held:
                    shipper.put(EventBatch.concat(held))
                shipper.finish()
                took = time.monotonic() - began
                loss = sensor.loss(slot)
            stored = int(store.select("SELECT count() AS n FROM events")["n"][0].as_py())
        finally:
            backend.close()
            store.close()
    section.add("rows stored a second", "rows", [stored / took], at_least=150_000, note=f"{stored:,} rows")
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


def _take(
    sensor: Sensor, box: Sandbox, folder: Path, seconds: float, consume: Callable[[EventBatch], None]
) -> tuple[int, int, float]:
    """Drain while loops run in the sandbox: (slot, events taken, reader's CPU seconds)."""
    box.write_file("/usr/bin/bench-loops", place.compile_loops(folder).read_bytes(), 0o755)
    script = f"mkdir -p {Path(OPENED).parent}; touch {OPENED}; " + "".join(
        f"timeout {seconds} /usr/bin/bench-loops open 2000000000 {OPENED} & " for _ in range(WRITERS)
    )
    writer = threading.Thread(target=place.output_of, args=(box, ["bash", "-c", script + "wait; true"]))
    writer.start()
    taken, cpu, slot = 0, 0.0, 0
    while writer.is_alive() or taken == 0:
        before = time.thread_time()
        batch = sensor.drain(0.02)
        cpu += time.thread_time() - before
        if len(batch):
            taken += len(batch)
            slot = int(batch.records["slot"][0])
            consume(batch)
    writer.join()
    while len(batch := sensor.drain(0.0)):
        taken += len(batch)
        consume(batch)
    return slot, taken, cpu
