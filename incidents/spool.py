"""The spool: rows on disk, durable before anything else happens to them, until the store has them.

    spool = Spool(home / "spool")
    segment = spool.append("events", batch, sandbox_id)   # on disk, fsynced, when it returns
    for segment in spool.pending():
        ship(segment.read_bytes(), segment.header())
        spool.acknowledge(segment)

A file gets its final name only when all of its bytes are on disk, so that a kill -9 leaves either a whole
segment or none. Only one process opens a spool; its threads may share it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import uuid
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from invigilator.incidents import lock, segment, stamp
from invigilator.incidents.segment import SUFFIX, Segment, SegmentError

DEFAULT_MAX_BYTES = 8 << 30
_PART = ".part"


class SpoolError(Exception):
    """The spool cannot be used; the message says what to do."""


class SpoolFullError(SpoolError):
    """Nothing was written: the disk or the spool's own bound is reached. Keep the rows and try again."""


class Spool:
    """Segments that wait in `folder`, oldest first.

    `max_bytes` bounds what waits; past it `append` raises SpoolFullError. `node_id` defaults to one generated
    once and kept in the folder.
    """

    def __init__(
        self, folder: Path, *, node_id: uuid.UUID | None = None, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._guard = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock = lock.acquire(folder / "lock", f"the spool {folder}")
        except lock.LockedError as error:
            raise SpoolError(str(error)) from error
        for stale in folder.glob(f"*{_PART}"):
            stale.unlink()
        self.node_id = node_id or stamp.node_id(folder / "node_id")
        self.boot_id = stamp.boot_id()
        self._known: dict[str, Segment] = {}
        self._awaited: set[uuid.UUID] = set()
        self._next = self._first_free_number()
        self._held_bytes = self._measure_bytes()

    def append(
        self,
        table: str,
        data: pa.Table | pa.RecordBatch,
        sandbox_id: uuid.UUID | None,
        *,
        origin: stamp.Origin | None = None,
        segment_id: uuid.UUID | None = None,
    ) -> Segment:
        """Write rows as one segment; it is on disk, file and folder fsynced, when this returns.

        `data` has columns of the store's `table`, the stamped ones (`stamp.stamp`) excepted. `sandbox_id` is
        None where rows of several sandboxes, or of none, stand in it. `origin` names the rollout of events
        that do not carry theirs. `segment_id`: of rows that may be written again after a crash, always the
        same, so that the store takes them once. ValueError for no rows or more than `segment.MAX_ROWS`;
        SpoolFullError when full.
        """
        if not 0 < data.num_rows <= segment.MAX_ROWS:
            raise ValueError(f"a segment has 1 to {segment.MAX_ROWS} rows, not {data.num_rows}")
        offset = (
            origin.wall_offset_ns if origin and origin.wall_offset_ns is not None else stamp.wall_offset_ns()
        )
        ranges = stamp.seq_ranges(data)
        mine = ranges.get(sandbox_id) if sandbox_id else None
        with self._guard:
            header = Segment(
                id=segment_id or uuid.uuid4(),
                table=table,
                rows=data.num_rows,
                number=self._next,
                schema_version=segment.current_version(table),
                sandbox_id=sandbox_id,
                first_seq=mine.first if mine else 0,
                last_seq=mine.last if mine else 0,
                node_id=self.node_id,
                boot_id=self.boot_id,
                wall_offset_ns=offset,
                day=datetime.now(UTC).date(),
                ranges=ranges,
            )
            header, content = segment.encode(header, stamp.stamp(data, header, origin))
            self._refuse_beyond_bound(len(content))
            path = self._write(header.file_name, content)
            self._next += 1
            self._held_bytes += len(content)
            header = replace(header, path=path)
            self._known[header.file_name] = header
            self._awaited.add(header.id)
            return header

    def holds(self, ids: Collection[uuid.UUID]) -> bool:
        """Whether any of these, which `append` has returned, is neither acknowledged nor set aside."""
        with self._guard:
            return not self._awaited.isdisjoint(ids)

    def pending(self) -> list[Segment]:
        """Segments not yet acknowledged, oldest first. Files that are no segment are quarantined."""
        with self._guard:
            found = []
            for name in self._names():
                known = self._known.get(name)
                if known is None:
                    try:
                        known = self._known[name] = segment.read_header(self.folder / name)
                    except SegmentError as error:
                        self._set_aside(self.folder / name, str(error))
                        continue
                found.append(known)
            return found

    def acknowledge(self, acknowledged: Segment) -> None:
        """Forget a segment that the store has. Idempotent.

        The removal is not fsynced: a segment that a power failure brings back is sent again, and the store
        knows it.
        """
        with self._guard:
            self._known.pop(acknowledged.file_name, None)
            self._awaited.discard(acknowledged.id)
            with contextlib.suppress(FileNotFoundError):
                (self.folder / acknowledged.file_name).unlink()
                self._held_bytes -= acknowledged.size_bytes

    def quarantine(self, refused: Segment, reason: str) -> Path:
        """Set a segment aside that the store refuses for good; it is kept, with `reason`, and not sent."""
        with self._guard:
            self._known.pop(refused.file_name, None)
            self._awaited.discard(refused.id)
            return self._set_aside(self.folder / refused.file_name, reason)

    def quarantined(self) -> list[tuple[Path, str]]:
        """Files set aside, and why."""
        return [
            (path, path.with_name(path.name + ".reason").read_text(errors="replace"))
            for path in sorted((self.folder / "quarantine").glob(f"*{SUFFIX}"))
        ]

    def size_bytes(self) -> int:
        """Bytes that wait, those set aside included."""
        with self._guard:
            return self._held_bytes

    def close(self) -> None:
        """Let another process open the spool."""
        self._lock.release()

    def _measure_bytes(self) -> int:
        held = [*self.folder.glob(f"*{SUFFIX}"), *(self.folder / "quarantine").glob("*")]
        return sum(path.stat().st_size for path in held)

    def _names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.folder) if entry.name.endswith(SUFFIX))

    def _first_free_number(self) -> int:
        numbers = [int(name[:16]) for name in self._names() if name[:16].isdigit()]
        return max(numbers, default=0) + 1

    def _refuse_beyond_bound(self, more_bytes: int) -> None:
        held = self._held_bytes
        if held + more_bytes > self.max_bytes:
            raise SpoolFullError(
                f"the spool {self.folder} holds {held} bytes that the store has not acknowledged, of "
                f"{self.max_bytes} allowed: start or repair the store (guard serve), or raise the bound"
            )

    def _write(self, name: str, content: bytes) -> Path:
        part, path = self.folder / (name[:16] + _PART), self.folder / name
        try:
            _write_synced(part, content)
            part.rename(path)
            _sync_folder(self.folder)
        except OSError as error:
            for unfinished in (part, path):
                unfinished.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise SpoolFullError(
                    f"no space left for the spool {self.folder} ({len(content)} bytes needed): free some on "
                    "its disk; the rows were not written and nothing that was written is lost"
                ) from error
            raise SpoolError(f"the spool {self.folder} cannot be written: {error.strerror}") from error
        return path

    def _set_aside(self, path: Path, reason: str) -> Path:
        target = self.folder / "quarantine" / path.name
        target.parent.mkdir(mode=0o700, exist_ok=True)
        path.rename(target)
        _sync_folder(target.parent)
        _sync_folder(self.folder)
        with contextlib.suppress(OSError):  # a full disk must not keep a bad file in the way
            target.with_name(target.name + ".reason").write_text(reason)
        return target


def _write_synced(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
