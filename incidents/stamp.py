"""What the spool adds to rows: which node, boot, segment and rollout, and wall time, fixed once."""

from __future__ import annotations

import functools
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from invigilator.incidents.segment import MAX_ROWS, SegmentError, SeqRange

if TYPE_CHECKING:
    from invigilator.incidents.segment import Segment

UUID_BYTES = pa.binary(16)
WALL_TIME = pa.timestamp("ns", "UTC")


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose events they are. `wall_offset_ns` fixes the sandbox's wall clock (CLOCK_REALTIME − CLOCK_BOOTTIME
    at its creation), so that all of its times agree; None: as it is when the events are spooled."""

    run_id: str = ""
    rollout_id: str = ""
    attempt: int = 1
    wall_offset_ns: int | None = None


def wall_offset_ns() -> int:
    """CLOCK_REALTIME − CLOCK_BOOTTIME now; right to the time that two clock reads take."""
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return wall - (before + after) // 2


@functools.cache
def boot_id() -> uuid.UUID:
    """The kernel's id of this boot."""
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip())


def node_id(path: Path) -> uuid.UUID:
    """The node's id kept in `path`; generated at the first call."""
    try:
        return uuid.UUID(path.read_text().strip())
    except FileNotFoundError:
        made = uuid.uuid4()
        part = path.with_name(path.name + ".part")
        part.write_text(f"{made}\n")
        part.rename(path)
        return made


def events_with_origin(batch: pa.RecordBatch, origin: Origin) -> pa.Table:
    """Events with their rollout and wall time, to be concatenated with other sandboxes' into one segment."""
    offset = origin.wall_offset_ns if origin.wall_offset_ns is not None else wall_offset_ns()
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    for name, values in _event_columns(table, origin, offset).items():
        table = table.append_column(pa.field(name, values.type, nullable=False), values)
    return table


def stamp(data: pa.Table | pa.RecordBatch, header: Segment, origin: Origin | None) -> pa.RecordBatch:
    """One record batch of the rows with `segment_id`, `day`, `node_id`; for events also `boot_id`, and, where
    they have none yet, `wall_time`, `run_id`, `rollout_id`, `attempt`."""
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    n = table.num_rows
    added: dict[str, pa.Array] = {
        "segment_id": pa.repeat(pa.scalar(header.id.bytes, UUID_BYTES), n),
        "day": pa.repeat(pa.scalar(header.day, pa.date32()), n),
        "node_id": pa.repeat(pa.scalar(header.node_id.bytes, UUID_BYTES), n),
    }
    if header.table == "events":
        added["boot_id"] = pa.repeat(pa.scalar(header.boot_id.bytes, UUID_BYTES), n)
        added |= _event_columns(table, origin or Origin(), header.wall_offset_ns)
    for name, values in added.items():
        if name in table.column_names:
            raise SegmentError(
                f"column {name} is the spool's to add; it must not be in the rows of {header.table}"
            )
        table = table.append_column(pa.field(name, values.type, nullable=False), values)
    return _one_batch(table)


def _event_columns(table: pa.Table, origin: Origin, offset_ns: int) -> dict[str, pa.Array]:
    n = table.num_rows
    if "wall_time" in table.column_names:
        return {}
    boot_ns = table.column("time_ns").to_numpy().astype(np.int64)
    return {
        "wall_time": pa.array(boot_ns + offset_ns).cast(WALL_TIME),
        "run_id": _constant(origin.run_id, n),
        "rollout_id": _constant(origin.rollout_id, n),
        "attempt": pa.repeat(pa.scalar(origin.attempt, pa.uint32()), n),
    }


def _constant(text: str, n: int) -> pa.Array:
    codes = pa.array(np.zeros(n, np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array([text.encode()], pa.binary()))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.unify_dictionaries().combine_chunks().to_batches(max_chunksize=MAX_ROWS)
    if len(batches) != 1:
        raise SegmentError(
            f"the rows do not fit one record batch: {table.num_rows} rows, {table.nbytes} bytes"
        )
    return batches[0]


def seq_ranges(data: pa.Table | pa.RecordBatch) -> dict[uuid.UUID, SeqRange]:
    """First and last `seq` and number of rows of each sandbox; empty for rows without `seq`."""
    if not {"sandbox_id", "seq"} <= set(data.schema.names) or not data.num_rows:
        return {}
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    owner = table.column("sandbox_id").combine_chunks()
    halves = np.frombuffer(owner.buffers()[1], ">u8", 2 * len(owner), owner.offset * 16).reshape(-1, 2)
    seq = table.column("seq").to_numpy()
    if (halves == halves[0]).all():
        return {_uuid(halves[0]): SeqRange(int(seq.min()), int(seq.max()), len(seq))}
    order = np.lexsort((seq, halves[:, 1], halves[:, 0]))
    halves, seq = halves[order], seq[order]
    starts = np.flatnonzero(np.r_[True, (halves[1:] != halves[:-1]).any(axis=1)])
    ends = np.r_[starts[1:], len(seq)]
    return {
        _uuid(halves[a]): SeqRange(int(seq[a]), int(seq[b - 1]), int(b - a))
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
    }


def _uuid(halves: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> uuid.UUID:
    return uuid.UUID(int=(int(halves[0]) << 64) | int(halves[1]))
