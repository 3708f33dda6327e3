"""The event record in user space: numpy dtype, Arrow schema, and a batch of events.

`src/event.h` is the one definition. The dtype here is compared with the compiled object's BTF at load
(`loader.check_layout`), the Arrow schema is derived from the dtype, and the store's table is checked
against the Arrow schema (`incidents.store`).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

EVENT_SCHEMA_VERSION = 1


class Kind(enum.IntEnum):
    """`enum event_kind`: what happened."""

    NONE = 0
    FORK = 1
    EXEC = 2
    EXIT = 3
    MEMFD = 4
    OPEN = 10
    RENAME = 11
    LINK = 12
    SYMLINK = 13
    UNLINK = 14
    MKDIR = 15
    MKNOD = 16
    TRUNCATE = 17
    CHMOD = 18
    CHOWN = 19
    MOUNT = 20
    CLONE_RANGE = 21
    EXCHANGE_RANGE = 22
    COPY_RANGE = 23
    GETDENTS = 24
    MMAP_WRITE = 25
    WRITE = 26
    FALLOCATE = 27
    XATTR = 28
    UTIMES = 29
    ACCESS = 30
    READ = 31
    CONNECT = 40
    CONNECT_RESULT = 41
    SEND = 42
    BIND = 43
    LISTEN = 44
    SOCKET = 45
    DNS = 46
    NET_DENIED = 47
    ACCEPT = 48
    PTRACE = 60
    VM_ACCESS = 61
    SIGNAL = 62
    SETNS = 63
    UNSHARE = 64
    BPF = 65
    PERF_OPEN = 66
    MODULE = 67
    KEYCTL = 68
    USERFAULTFD = 69
    HANDLE_OPEN = 70
    PIDFD_GETFD = 71
    IO_URING = 72
    FOREIGN_ABI = 73
    CGROUP_LEFT = 74
    CHROOT = 75
    IO_URING_OP = 76
    OUTPUT = 80
    FILE_BYTES = 81
    DENIAL = 100
    PHASE = 120
    STEP = 121
    DIFF = 122
    SURVIVOR = 123
    LIMIT = 124
    CANARY = 125
    CANARY_MATCH = 126
    GIT_FUTURE = 127
    POLICY = 128


class EventClass(enum.IntEnum):
    """`enum event_class`: what coverage and loss are counted by."""

    NONE = 0
    PROCESS = 1
    FILE = 2
    NETWORK = 3
    PRIVILEGE = 4
    OUTPUT = 5
    DENIAL = 6
    SENSOR = 7


class Phase(enum.IntEnum):
    """`enum event_phase`."""

    UNKNOWN = 0
    SETUP = 1
    AGENT = 2
    VERIFY = 3


class Actor(enum.IntEnum):
    """`enum event_actor`: whose command a process descends from."""

    AGENT = 0
    PLATFORM = 1


class Abi(enum.IntEnum):
    """`enum event_abi`: through which system call table."""

    NATIVE = 0
    I386 = 1
    X32 = 2


class DiffChange(enum.IntEnum):
    """`enum diff_change`: what the end-of-phase comparison found."""

    ADDED = 1
    MODIFIED = 2
    REMOVED = 3
    METADATA = 4


class NetHook(enum.IntEnum):
    """`enum net_hook`: which cgroup program refused a packet or a call, or NAME, the guard's resolver."""

    CONNECT = 1
    SENDMSG = 2
    EGRESS = 3
    BIND = 4
    SOCK_CREATE = 5
    NAME = 6


class Tier(enum.IntFlag):
    """`enum event_tier`: what saw or enforced a fact."""

    TRACEPOINT = 1
    CGROUP = 2
    LSM = 4
    APPARMOR = 8
    SECCOMP = 16
    MOUNT = 32
    DIFF = 64
    GUEST = 128
    AGENT = 256


class Flag(enum.IntFlag):
    """`enum event_flag`."""

    PATH_USER = 1
    PATH_CUT = 2
    PATH_FAULT = 4
    TEXT_CUT = 8
    MEMFD = 16
    CREATED = 32
    REDACTED = 64
    THREAD = 128
    RECORDED_STREAM = 256
    STRING_LOST = 512
    EXECUTABLE = 1024
    DELETED = 2048


EVENT = np.dtype(
    [
        ("seq", "<u8"),
        ("time_ns", "<u8"),
        ("start_ns", "<u8"),
        ("parent_start_ns", "<u8"),
        ("result", "<i8"),
        ("a0", "<u8"),
        ("a1", "<u8"),
        ("a2", "<u8"),
        ("ino", "<u8"),
        ("ino2", "<u8"),
        ("size", "<u8"),
        ("dev", "<u4"),
        ("gen", "<u4"),
        ("dev2", "<u4"),
        ("gen2", "<u4"),
        ("mode", "<u4"),
        ("owner", "<u4"),
        ("slot", "<u4"),
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("ppid", "<u4"),
        ("uid", "<u4"),
        ("step", "<u4"),
        ("path", "<u4"),
        ("path2", "<u4"),
        ("text", "<u4"),
        ("exe", "<u4"),
        ("kind", "<u2"),
        ("nr", "<u2"),
        ("tiers", "<u2"),
        ("flags", "<u2"),
        ("port", "<u2"),
        ("class", "u1"),
        ("phase", "u1"),
        ("origin_phase", "u1"),
        ("actor", "u1"),
        ("abi", "u1"),
        ("family", "u1"),
        ("protocol", "u1"),
        ("reserved", "u1", (7,)),
        ("address", "u1", (16,)),
    ]
)
"""One event, as `struct event`; 192 bytes."""

STRING_FIELDS = ("path", "path2", "text", "exe")
"""Fields of EVENT that hold a string's code: an index into `EventBatch.strings`, 0 for absent."""

_HIDDEN = ("slot", "reserved", "address", *STRING_FIELDS)


def arrow_schema() -> pa.Schema:
    """The Arrow schema of a spool segment and of the store's `events` table.

    The numeric fields of EVENT keep name and width; string fields are dictionary<int32, binary>; `address`
    is fixed_size_binary(16); in front stands `sandbox_id`, the sandbox's UUID as fixed_size_binary(16).
    """
    fields = [pa.field("sandbox_id", pa.binary(16), nullable=False)]
    for name in EVENT.names or ():
        if name not in _HIDDEN:
            fields.append(pa.field(name, pa.from_numpy_dtype(EVENT[name]), nullable=False))
    word = pa.dictionary(pa.int32(), pa.binary())
    fields += [pa.field(name, word, nullable=False) for name in STRING_FIELDS]
    fields.append(pa.field("address", pa.binary(16), nullable=False))
    return pa.schema(fields, metadata={b"schema_version": str(EVENT_SCHEMA_VERSION).encode()})


Records = npt.NDArray[np.void]
"""A structured array of dtype EVENT."""


_STRINGS_AT = next(
    offset for name, (_, offset, *_) in (EVENT.fields or {}).items() if name == STRING_FIELDS[0]
)


def string_codes(records: Records) -> npt.NDArray[np.uint32]:
    """The four string fields, which lie side by side, as a view of shape (n, 4)."""
    if not len(records):
        return np.empty((0, len(STRING_FIELDS)), np.uint32)
    return np.ndarray(
        (len(records), len(STRING_FIELDS)), np.uint32, records, _STRINGS_AT, (EVENT.itemsize, 4)
    )


_WHOLE = np.dtype((np.void, EVENT.itemsize))


def rows(records: Records, where: npt.NDArray[Any] | slice) -> Records:
    """`records[where]`, twenty times faster: rows are moved whole, where numpy would move field by field."""
    taken: Records = records.view(_WHOLE)[where].view(EVENT)
    return taken


def joined(parts: Sequence[Records]) -> Records:
    """All parts, one after the other, in memory of their own; rows are moved whole."""
    whole = np.empty(sum(map(len, parts)), _WHOLE)
    at = 0
    for part in parts:
        whole[at : at + len(part)] = part.view(_WHOLE)
        at += len(part)
    records: Records = whole.view(EVENT)
    return records


@dataclass(slots=True)
class EventBatch:
    """Events of one or several sandboxes, in `seq` order within each.

    `records` has dtype EVENT, shape (n,); its string fields index `strings`, whose entry 0 is b"".
    `strings` are the raw bytes that the kernel saw, not decoded; codes have no meaning outside the batch.
    """

    records: Records
    strings: list[bytes]

    @classmethod
    def empty(cls) -> EventBatch:
        """A batch without events."""
        return cls(np.empty(0, EVENT), [b""])

    def __len__(self) -> int:
        return len(self.records)

    def column(self, name: str) -> npt.NDArray[Any]:
        """One field of all events, shape (n,) ((n, 16) for `address`); a view, not a copy."""
        return self.records[name]

    def text(self, name: str, row: int) -> bytes:
        """The bytes of string field `name` in event `row`."""
        return self.strings[int(self.records[name][row])]

    def match(self, name: str, predicate: Callable[[bytes], bool]) -> npt.NDArray[np.bool_]:
        """Where string field `name` satisfies `predicate`, shape (n,); called once per distinct string."""
        verdict = np.fromiter((predicate(s) for s in self.strings), np.bool_, len(self.strings))
        found: npt.NDArray[np.bool_] = verdict[self.records[name]]
        return found

    def select(self, where: npt.NDArray[np.bool_]) -> EventBatch:
        """The events where `where`, shape (n,), is true; the strings are shared."""
        return EventBatch(rows(self.records, where), self.strings)

    def by_slot(self) -> Iterator[tuple[int, EventBatch]]:
        """One batch a sandbox: (slot, its events in `seq` order)."""
        records = self.records
        slots, seqs = records["slot"], records["seq"]
        same = slots[1:] == slots[:-1]
        sorted_already = (slots[1:] > slots[:-1]) | (same & (seqs[1:] >= seqs[:-1]))
        if not sorted_already.all():
            records = rows(records, np.lexsort((seqs, slots)))
            slots = records["slot"]
            same = slots[1:] == slots[:-1]
        starts = [0, *(np.flatnonzero(~same) + 1).tolist(), len(records)] if len(records) else []
        for start, end in itertools.pairwise(starts):
            yield int(slots[start]), EventBatch(records[start:end], self.strings)

    def to_arrow(self, sandbox_id: bytes) -> pa.RecordBatch:
        """The batch of one sandbox as a record batch of `arrow_schema()`; only used strings go along."""
        schema = arrow_schema()
        n = len(self.records)
        owner = pa.array([sandbox_id], pa.binary(16))
        arrays: list[pa.Array] = [owner.take(pa.array(np.zeros(n, np.int32)))]
        columns = _columns(self.records, [name for name in schema.names if name != "sandbox_id"])
        for name, values in columns.items():
            if name in STRING_FIELDS:
                arrays.append(self._words(values))
            elif name == "address":
                arrays.append(pa.Array.from_buffers(pa.binary(16), n, [None, pa.py_buffer(values)]))
            else:
                arrays.append(pa.array(values))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _words(self, codes: npt.NDArray[Any]) -> pa.DictionaryArray:
        """A string field's codes, shape (n,), with the strings that they name."""
        used = np.flatnonzero(np.bincount(codes, minlength=len(self.strings)))
        dense = np.empty(len(self.strings), np.int32)
        dense[used] = np.arange(len(used), dtype=np.int32)
        words = pa.array([self.strings[code] for code in used.tolist()], pa.binary())
        return pa.DictionaryArray.from_arrays(pa.array(dense.take(codes)), words)

    @classmethod
    def from_arrow(cls, batch: pa.RecordBatch, slot: int = 0) -> EventBatch:
        """Events of one sandbox from a record batch with the columns of `arrow_schema()`; others are ignored.

        String columns may be plain binary or dictionary encoded. Inverse of `to_arrow` up to string codes.
        """
        records = np.zeros(batch.num_rows, EVENT)
        records["slot"] = slot
        codes: dict[bytes, int] = {b"": 0}
        for field in arrow_schema():
            if field.name == "sandbox_id":
                continue
            column = batch.column(field.name)
            if field.name in STRING_FIELDS:
                if not pa.types.is_dictionary(column.type):
                    column = column.dictionary_encode()
                words = [_as_bytes(w) for w in column.dictionary.to_pylist()]
                local = np.array([codes.setdefault(w, len(codes)) for w in words] or [0], np.uint32)
                records[field.name] = local[column.indices.to_numpy(zero_copy_only=False)]
            elif field.name == "address":
                joined = b"".join(column.to_pylist())
                records["address"] = np.frombuffer(joined, np.uint8).reshape(-1, 16)
            else:
                records[field.name] = column.to_numpy(zero_copy_only=False)
        return cls(records, list(codes))

    @classmethod
    def concat(cls, batches: Iterable[EventBatch]) -> EventBatch:
        """All events of `batches`, one after the other, over one string table."""
        batches = list(batches)
        codes: dict[bytes, int] = {b"": 0}
        records = joined([batch.records for batch in batches])
        at = 0
        for batch in batches:
            part = string_codes(records[at : at + len(batch)])
            local = np.array([codes.setdefault(s, len(codes)) for s in batch.strings], np.uint32)
            if (local != np.arange(len(local))).any():
                part[...] = local.take(part)
            at += len(batch)
        return cls(records, list(codes))


_CHUNK_ROWS = 2048
"""Rows whose fields are moved together: as many as the CPU's second cache holds."""


def _columns(records: Records, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Fields as arrays of their own. Row by row in memory, so chunk by chunk: field by field over all rows
    would fetch all rows once for each field."""
    columns = {name: np.empty(len(records), EVENT[name]) for name in names}
    for start in range(0, len(records), _CHUNK_ROWS):
        chunk = records[start : start + _CHUNK_ROWS]
        for name, column in columns.items():
            column[start : start + len(chunk)] = chunk[name]
    return columns


def _as_bytes(word: bytes | str | None) -> bytes:
    if word is None:
        return b""
    return word if isinstance(word, bytes) else word.encode("utf-8", "surrogateescape")
