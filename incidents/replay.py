"""Stored events as batches again, in `seq` order, so that detectors judge them as they judged them live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from invigilator.ebpf.events import EventBatch, arrow_schema
from invigilator.incidents.segment import Segment

if TYPE_CHECKING:
    from invigilator.incidents.store import Store

BATCH_ROWS = 50_000


def read_events(store: Store, sandbox_id: UUID, batch_rows: int = BATCH_ROWS) -> Iterator[EventBatch]:
    """The stored events of a sandbox, in `seq` order, at most `batch_rows` at a time."""
    names = ", ".join(arrow_schema().names)
    sql = (
        f"SELECT {names} FROM events WHERE sandbox_id = {{box:UUID}} AND seq > {{after:UInt64}} "
        f"ORDER BY seq LIMIT {int(batch_rows)}"
    )
    after = 0
    while True:
        found = store.select(sql, {"box": str(sandbox_id), "after": after})
        if not found.num_rows:
            return
        after = found["seq"][-1].as_py()
        yield to_batch(found)


def wall_offset_ns(store: Store, sandbox_id: UUID) -> int | None:
    """The offset that the sandbox's wall times were made with; None where it has no events in the store."""
    sql = (
        "SELECT toUnixTimestamp64Nano(wall_time) - toInt64(time_ns) AS offset FROM events "
        "WHERE sandbox_id = {box:UUID} ORDER BY seq LIMIT 1"
    )
    found = store.select(sql, {"box": str(sandbox_id)})
    return int(found["offset"][0].as_py()) if found.num_rows else None


def read_segments(segments: Iterable[Segment], sandbox_id: UUID) -> EventBatch:
    """The events of a sandbox from segment files (a spool's, a corpus's), in `seq` order."""
    parts = []
    for segment in segments:
        if segment.table == "events" and sandbox_id in segment.ranges:
            rows = segment.read()
            parts.append(
                rows.filter(pc.equal(rows["sandbox_id"], pa.scalar(sandbox_id.bytes, pa.binary(16))))
            )
    if not parts:
        return EventBatch.empty()
    return to_batch(pa.concat_tables(parts).sort_by("seq"))


def to_batch(rows: pa.Table) -> EventBatch:
    """Rows with the columns of the event record, of one sandbox, as one batch."""
    [batch] = rows.unify_dictionaries().combine_chunks().to_batches()
    return EventBatch.from_arrow(batch)
