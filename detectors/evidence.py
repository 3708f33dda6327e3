"""Events as evidence: JSON that a person reads and that loses no byte.

Names in a sandbox may hold any bytes. `printable` shows them as text: what is not printable, and the
backslash itself, becomes `\\xNN` of its bytes; `original` turns it back.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from invigilator.ebpf.events import DiffChange, EventBatch, Flag, Kind, Phase, Tier

TEXT_MAX = 1024
"""Bytes of an argv or a text kept in evidence; the events table has the rest."""

_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SECOND_PATH = {
    Kind.RENAME: "to",
    Kind.LINK: "new_name",
    Kind.SYMLINK: "target",
    Kind.MOUNT: "source",
    Kind.CLONE_RANGE: "source",
    Kind.COPY_RANGE: "source",
    Kind.EXCHANGE_RANGE: "other",
    Kind.XATTR: "attribute",
    Kind.GIT_FUTURE: "refs",
}
_ARGUMENTS: dict[Kind, tuple[str, ...]] = {
    Kind.EXEC: ("argc",),
    Kind.EXIT: ("signal",),
    Kind.OPEN: ("flags", "mode"),
    Kind.RENAME: ("flags",),
    Kind.UNLINK: ("flags",),
    Kind.TRUNCATE: ("length",),
    Kind.CHMOD: ("mode",),
    Kind.CHOWN: ("uid", "gid"),
    Kind.MOUNT: ("flags",),
    Kind.CLONE_RANGE: ("command",),
    Kind.EXCHANGE_RANGE: ("command",),
    Kind.MMAP_WRITE: ("protection", "length"),
    Kind.WRITE: ("bytes",),
    Kind.READ: ("bytes",),
    Kind.FALLOCATE: ("mode", "length"),
    Kind.PTRACE: ("request", "target_pid"),
    Kind.VM_ACCESS: ("write", "target_pid"),
    Kind.SIGNAL: ("signal", "target_pid"),
    Kind.OUTPUT: ("bytes", "writes", "total_bytes"),
    Kind.FILE_BYTES: ("bytes", "writes", "total_bytes"),
    Kind.DIFF: ("change", "size"),
    Kind.SURVIVOR: ("ended",),
    Kind.LIMIT: ("value", "limit"),
    Kind.CANARY: (),
    Kind.IO_URING_OP: ("operation", "count"),
}
_OCTAL = {(Kind.OPEN, "mode"), (Kind.OPEN, "flags"), (Kind.CHMOD, "mode")}
_NETWORK = (Kind.CONNECT, Kind.CONNECT_RESULT, Kind.SEND, Kind.NET_DENIED, Kind.BIND, Kind.ACCEPT)
_AF_UNIX = 1


def printable(raw: bytes) -> str:
    """`raw` as printable text, without loss; see the module."""
    text = raw.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(c if c.isprintable() and c != "\\" else _escape(c) for c in text)


def original(text: str) -> bytes:
    """The bytes that `printable` showed as `text`."""
    parts = _ESCAPED.split(text)
    plain = (part.encode() for part in parts[::2])
    codes = [bytes([int(code, 16)]) for code in parts[1::2]]
    return b"".join(a + b for a, b in zip(plain, [*codes, b""], strict=True))


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def wall_time(time_ns: int, wall_offset_ns: int) -> datetime:
    """CLOCK_BOOTTIME as wall time, to the microsecond below."""
    return _EPOCH + timedelta(microseconds=(time_ns + wall_offset_ns) // 1000)


def stamp(at: datetime) -> str:
    """RFC 3339 with microseconds, UTC."""
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def outcome_name(result: int) -> str:
    """A system call's result as text: `ok`, or the errno's name."""
    return "ok" if result >= 0 else errno.errorcode.get(-result, str(result))


def address_text(raw: bytes) -> str:
    """16 bytes of an address as text, IPv4 unmapped."""
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def as_evidence(batch: EventBatch, row: int, sandbox_id: uuid.UUID, wall_offset_ns: int) -> dict[str, Any]:
    """One event as evidence: names and values that a person reads; `event` is the event's id."""
    record = batch.records[row]
    kind = Kind(int(record["kind"]))
    fact: dict[str, Any] = {
        "event": f"{sandbox_id}/{int(record['seq'])}",
        "kind": kind.name.lower(),
        "at": stamp(wall_time(int(record["time_ns"]), wall_offset_ns)),
        "phase": Phase(int(record["phase"])).name.lower(),
        "pid": int(record["pid"]),
        "result": outcome_name(int(record["result"])),
    }
    fact |= _strings(batch, row, kind)
    fact |= _arguments(record, kind)
    if record["origin_phase"] != record["phase"]:
        fact["origin_phase"] = Phase(int(record["origin_phase"])).name.lower()
    if record["ino"]:
        fact["object"] = f"{int(record['dev'])}:{int(record['ino'])}:{int(record['gen'])}"
    if record["ino2"]:
        fact["object2"] = f"{int(record['dev2'])}:{int(record['ino2'])}:{int(record['gen2'])}"
    if kind in _NETWORK and record["family"] != _AF_UNIX:
        fact["target"] = _target(record)
    if flags := Flag(int(record["flags"]) & 0xFFF):
        fact["marks"] = [flag.name.lower() for flag in Flag if flag in flags and flag.name]
    if tiers := Tier(int(record["tiers"]) & 0x1FF):
        fact["tiers"] = [tier.name.lower() for tier in Tier if tier in tiers and tier.name]
    return fact


def _strings(batch: EventBatch, row: int, kind: Kind) -> dict[str, Any]:
    names = {"exe": "exe", "path": "path", "path2": _SECOND_PATH.get(kind, "named"), "text": "text"}
    found: dict[str, Any] = {}
    for field, name in names.items():
        if raw := batch.text(field, row):
            found[name] = printable(raw[:TEXT_MAX] if field == "text" else raw)
    if kind is Kind.EXEC and "text" in found:
        del found["text"]
        found["argv"] = [printable(word) for word in batch.text("text", row)[:TEXT_MAX].split(b"\0")]
    return found


def _arguments(record: Any, kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, name in zip(("a0", "a1", "a2"), _ARGUMENTS.get(kind, ()), strict=False):
        value = int(record[field])
        if (kind, name) == (Kind.DIFF, "change"):
            found[name] = DiffChange(value).name.lower() if value in set(DiffChange) else str(value)
        elif (kind, name) in _OCTAL:
            found[name] = f"0o{value:o}"
        elif name == "command":
            found[name] = f"0x{value:x}"
        else:
            found[name] = value
    return found


def _target(record: Any) -> str:
    address = address_text(bytes(record["address"]))
    shown = f"[{address}]" if ":" in address else address
    return f"{shown}:{int(record['port'])}"
