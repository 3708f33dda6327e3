"""Exports: the record into a file, piece by piece, so that memory stays flat; the file appears when whole.

JSON Lines: one object a row; bytes that are no UTF-8 are `{"base64": "…"}`, so that nothing is lost. Parquet:
bytes are bytes, times are nanoseconds. OCSF: JSON Lines in the words of `guard/ocsf.py`.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from invigilator.guard import ocsf
from invigilator.guard.errors import MissingError, RefusedError

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["parquet", "jsonl", "ocsf"]
Subject = Literal["events", "incidents", "rollouts"]


@dataclass(frozen=True, slots=True)
class Exported:
    """Rows written, and rows that the format has no place for."""

    rows: int
    left_out: int


def export(
    pieces: Iterable[pa.Table],
    subject: Subject,
    kind: Format,
    target: Path,
    progress: Callable[[int], None] = lambda rows: None,
) -> Exported:
    """Write the pieces of an export to `target`. RefusedError where the format does not fit the subject."""
    if kind == "ocsf" and subject == "rollouts":
        raise RefusedError("OCSF has no class for rollouts", fix="--format jsonl or parquet")
    write = _parquet if kind == "parquet" else _lines
    with _appearing(target) as sink:
        return write(pieces, subject, kind, sink, progress)


def _parquet(
    pieces: Iterable[pa.Table],
    subject: Subject,
    kind: Format,
    sink: IO[bytes],
    progress: Callable[[int], None],
) -> Exported:
    try:
        from pyarrow import parquet
    except ImportError as missing:
        raise MissingError("Parquet needs pyarrow", fix="pip install 'invigilator[serve]'") from missing
    rows, writer = 0, None
    for table in pieces:
        writer = writer or parquet.ParquetWriter(sink, table.schema, compression="zstd")
        writer.write_table(table)
        rows += table.num_rows
        progress(rows)
    if writer is not None:
        writer.close()
    return Exported(rows, 0)


def _lines(
    pieces: Iterable[pa.Table],
    subject: Subject,
    kind: Format,
    sink: IO[bytes],
    progress: Callable[[int], None],
) -> Exported:
    written = left_out = 0
    for table in pieces:
        made = [_row(row, subject, kind) for row in _numbered(table).to_pylist()]
        kept = [one for one in made if one is not None]
        sink.write("".join(json.dumps(one, allow_nan=False) + "\n" for one in kept).encode())
        written, left_out = written + len(kept), left_out + len(made) - len(kept)
        progress(written)
    return Exported(written, left_out)


def _row(row: dict[str, Any], subject: Subject, kind: Format) -> dict[str, Any] | None:
    if kind == "ocsf":
        return ocsf.finding(row) if subject == "incidents" else ocsf.activity(row)
    return {name: exact(value) for name, value in row.items()}


def exact(value: Any) -> Any:
    """A value as JSON has it, without loss."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and value != value:
        return None
    return value


def _numbered(table: pa.Table) -> pa.Table:
    """Times as nanoseconds since 1970: Python's own have no nanoseconds."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(place, field.name, table[field.name].cast(pa.int64()))
    return table


@contextmanager
def _appearing(target: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is whole, on the disk, and readable by its owner alone."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
