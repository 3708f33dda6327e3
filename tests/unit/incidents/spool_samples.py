"""Events to put into spools."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa

from invigilator.ebpf.events import EVENT, EventBatch, Kind

BOX = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def events(n: int, owner: uuid.UUID = BOX, first: int = 1) -> pa.RecordBatch:
    records = np.zeros(n, EVENT)
    records["seq"] = np.arange(first, first + n)
    records["time_ns"] = np.arange(n) + 5
    records["kind"] = Kind.OPEN
    records["path"] = np.arange(n) % 3
    return EventBatch(records, [b"", b"/bin/\xff\n", b"/etc/'\""]).to_arrow(owner.bytes)
