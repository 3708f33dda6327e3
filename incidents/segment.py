"""A spool segment: one Arrow IPC file of one record batch, and the header that travels with it.

The file is plain Arrow: `pyarrow.ipc.open_file(path).read_all()` or `pandas.read_feather` open it. Its schema
metadata carries the header (key `segment`) and the range of `seq` of each sandbox in it (key `ranges`); the
SHA-256 of the whole file stands in the file's name and in the header that is sent along.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa

from invigilator.ebpf.events import EVENT_SCHEMA_VERSION

RECORD_SCHEMA_VERSION = 1
"""Version of the columns of every table but `events`, whose version is `EVENT_SCHEMA_VERSION`."""

MAX_ROWS = 1_000_000
"""Rows a segment: below the 1,048,449 at which ClickHouse cuts blocks, so that one segment is one block."""

SUFFIX = ".arrow"


class SegmentError(Exception):
    """The bytes are no segment that this version can read; the message says why."""


@dataclass(frozen=True, slots=True)
class SeqRange:
    """What a segment holds of one sandbox: first and last `seq`, and the number of rows."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The header of a segment.

    `number` orders the segments of a spool. `sandbox_id` is None, and `first_seq`, `last_seq` are 0, where
    rows of several sandboxes (or of none) stand in it. `wall_offset_ns` = CLOCK_REALTIME − CLOCK_BOOTTIME at
    spooling; `day` is the UTC day of spooling, the store's partition. `path`: the file here, None elsewhere.
    """

    id: uuid.UUID
    table: str
    rows: int
    number: int
    schema_version: int
    sandbox_id: uuid.UUID | None
    first_seq: int
    last_seq: int
    node_id: uuid.UUID
    boot_id: uuid.UUID
    wall_offset_ns: int
    day: date
    sha256: str = ""
    size_bytes: int = 0
    path: Path | None = field(default=None, compare=False)
    ranges: Mapping[uuid.UUID, SeqRange] = field(default_factory=dict, compare=False)

    @property
    def file_name(self) -> str:
        """Name of the file in the spool; sorts by `number`."""
        return f"{self.number:016d}-{self.table}-{self.id.hex}-{self.sha256}{SUFFIX}"

    def header(self) -> str:
        """The header as one line of ASCII JSON, for `X-Segment`; without `path` and `ranges`."""
        skipped = ("path", "ranges")
        return json.dumps(
            {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name not in skipped}
        )

    @classmethod
    def from_header(cls, text: str | bytes) -> Segment:
        """Inverse of `header`; SegmentError for anything else."""
        try:
            raw = json.loads(text)
            known = {f.name for f in fields(cls)} - {"path", "ranges"}
            if not isinstance(raw, dict) or set(raw) != known:
                raise SegmentError(f"the segment header must have exactly the fields {sorted(known)}")
            return cls(**{name: _typed(name, value) for name, value in raw.items()})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise SegmentError(f"the segment header cannot be read: {error}") from error

    def read_bytes(self) -> bytes:
        """The file's bytes, after checking them against `sha256`; SegmentError where they differ."""
        if self.path is None:
            raise SegmentError(f"segment {self.id} has no file here")
        content = self.path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise SegmentError(f"segment file {self.path.name} was changed or damaged: its SHA-256 differs")
        return content

    def read(self) -> pa.Table:
        """The rows, checked."""
        return decode(self.read_bytes(), self.sha256)[1]


_UUIDS = ("id", "node_id", "boot_id")
_INTS = ("rows", "number", "schema_version", "first_seq", "last_seq", "wall_offset_ns", "size_bytes")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, uuid.UUID | date) else value


def _typed(name: str, value: Any) -> Any:
    if name in _UUIDS or (name == "sandbox_id" and value is not None):
        return uuid.UUID(value)
    if name == "day":
        return date.fromisoformat(value)
    if name in _INTS and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return value


def current_version(table: str) -> int:
    """The schema version that this code writes for `table`."""
    return EVENT_SCHEMA_VERSION if table == "events" else RECORD_SCHEMA_VERSION


def check_version(segment: Segment) -> None:
    """SegmentError unless the segment's schema version is the current one or the one before."""
    current = current_version(segment.table)
    if segment.schema_version not in (current, current - 1):
        raise SegmentError(
            f"segment {segment.id} of table {segment.table} has schema version {segment.schema_version}; "
            f"this invigilator reads {current - 1} and {current}: ship it with the version that wrote it"
        )


def encode(segment: Segment, batch: pa.RecordBatch) -> tuple[Segment, bytes]:
    """The file of `batch`, and the header completed with `sha256` and `size_bytes`."""
    ranges = {str(owner): [r.first, r.last, r.rows] for owner, r in segment.ranges.items()}
    metadata = {**(batch.schema.metadata or {}), b"segment": segment.header().encode()}
    metadata[b"ranges"] = json.dumps(ranges).encode()
    batch = batch.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    digest = hashlib.sha256(content).hexdigest()
    return replace(segment, sha256=digest, size_bytes=len(content)), content


def decode(content: bytes, sha256: str | None = None) -> tuple[Segment, pa.Table]:
    """Header and rows of a segment file; checked against `sha256` where given, and in itself."""
    digest = hashlib.sha256(content).hexdigest()
    if sha256 is not None and digest != sha256:
        raise SegmentError("the segment was changed or damaged on its way: its SHA-256 differs")
    with _arrow_errors():
        reader = pa.ipc.open_file(pa.py_buffer(content))
        segment = _parse_metadata(reader.schema.metadata or {})
        table = reader.read_all()
        table.validate(full=True)
    if table.num_rows != segment.rows:
        raise SegmentError(f"segment {segment.id} promises {segment.rows} rows and holds {table.num_rows}")
    check_version(segment)
    return replace(segment, sha256=digest, size_bytes=len(content)), table


def read_header(path: Path) -> Segment:
    """The header of a segment file, without reading its rows; the name must fit the content's header."""
    with _arrow_errors(), pa.memory_map(str(path)) as source:
        segment = _parse_metadata(pa.ipc.open_file(source).schema.metadata or {})
    digest = path.name.removesuffix(SUFFIX).rpartition("-")[2]
    found = replace(segment, sha256=digest, size_bytes=path.stat().st_size, path=path)
    if found.file_name != path.name:
        raise SegmentError(
            f"{path.name} holds the segment {found.id} of table {found.table}: its name is wrong"
        )
    check_version(found)
    return found


def _parse_metadata(metadata: Mapping[bytes, bytes]) -> Segment:
    if b"segment" not in metadata:
        raise SegmentError("an Arrow file, but no segment: its schema has no segment header")
    segment = Segment.from_header(metadata[b"segment"])
    raw = json.loads(metadata.get(b"ranges", b"{}"))
    return replace(segment, ranges={uuid.UUID(owner): SeqRange(*span) for owner, span in raw.items()})


@contextlib.contextmanager
def _arrow_errors() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise SegmentError(f"not a readable Arrow file: {why[:200]}") from error
