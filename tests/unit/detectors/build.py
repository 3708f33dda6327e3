"""Events for tests, in a few readable lines.

    s = Story()
    s.phase("agent")
    s.open("/usr/bin/bash", "w", exe="/usr/bin/cp").write("/usr/bin/bash")
    found = judge(s)

Every method adds one event and answers the story. A process is a small number (`pid`); its start time, parent
and inode numbers follow from it and from the path, so that the same path is the same inode.
"""

from __future__ import annotations

import errno
import ipaddress
import uuid
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from invigilator.detectors.engine import Engine
from invigilator.ebpf.events import EVENT, DiffChange, EventBatch, Flag, Kind, Phase, Tier
from invigilator.incidents.records import Incident
from invigilator.profiles.policy import CLASS_DEFAULTS, Filesystem, Policy, ProtectedClass

SANDBOX = uuid.UUID(int=0x1234)
OFFSET_NS = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
PLACES = {
    "system_binary": ["/bin", "/sbin", "/lib", "/usr/bin", "/usr/sbin", "/usr/lib"],
    "test": ["/workspace/tests"],
    "reward": ["/logs/verifier"],
    "grader": ["/grader"],
    "answer": ["/solution"],
    "harness_log": ["/var/log/harness"],
    "control_socket": ["/run/harness.sock"],
}
MODES = {"r": 0, "w": 0o1101, "rw": 2, "a": 0o2001, "wx": 0o301, "dir": 0o200000, "path": 0o10000000}


def policy(**changes: Any) -> Policy:
    """A policy with every class of the catalogue; `changes` replace its parts."""
    protected = {
        name: ProtectedClass(paths=paths, read=CLASS_DEFAULTS[name][0], write=CLASS_DEFAULTS[name][1])
        for name, paths in PLACES.items()
    }
    files = Filesystem(
        workspace=["/workspace"], submission=["/workspace"], hidden=["/platform"], protected=protected
    )
    return Policy(**{"name": "t", "filesystem": files, **changes})


@dataclass
class Story:
    """Events in the making. `now`: seconds; each event comes `tick` later than the one before."""

    tick: float = 0.001
    now: float = 100.0
    current: Phase = Phase.UNKNOWN
    step: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    words: dict[bytes, int] = field(default_factory=lambda: {b"": 0})

    def add(self, kind: Kind, **fields: Any) -> Story:
        """Any event; strings as str or bytes, `error` an errno's name, `at` seconds."""
        self.now = fields.pop("at", self.now + self.tick)
        pid = fields.setdefault("pid", 10)
        error = fields.pop("error", None)
        row: dict[str, Any] = {
            "seq": len(self.rows) + 1,
            "time_ns": int(self.now * SECOND),
            "kind": kind,
            "phase": self.current,
            "origin_phase": self.current,
            "step": self.step,
            "start_ns": pid * 7 + 1,
            "ppid": 1,
            "tid": pid,
            "tiers": Tier.TRACEPOINT,
            "exe": "/usr/bin/python3.11",
        }
        if "ppid" in fields:
            row["parent_start_ns"] = fields["ppid"] * 7 + 1
        if error:
            row["result"] = -getattr(errno, error)
        row |= fields
        for name in ("path", "path2", "text", "exe"):
            row[name] = self._word(row.get(name, b""))
        if isinstance(row.get("address"), str):
            row["address"] = _address(row["address"])
        self.rows.append(row)
        return self

    def phase(self, name: str, *, begins: bool = True) -> Story:
        """A phase begins (or ends)."""
        phase = Phase[name.upper()]
        if begins:
            self.current = phase
        return self._fact(Kind.PHASE, a0=int(begins), phase=phase)

    def ends(self, *diffs: tuple[str | bytes, str, int]) -> Story:
        """The phase ends, and the comparison says `diffs`: (path, change, size)."""
        self.phase(self.current.name.lower(), begins=False)
        for path, change, size in diffs:
            self.diff(path, change, size)
        return self

    def diff(self, path: str | bytes, change: str = "modified", size: int = 1) -> Story:
        return self._fact(Kind.DIFF, path=path, a0=DiffChange[change.upper()], a1=size, tiers=Tier.DIFF)

    def begin_step(self, ordinal: int, name: str) -> Story:
        self.step = ordinal
        return self._fact(Kind.STEP, text=name, a0=1)

    def exec(self, exe: str, *argv: str, **fields: Any) -> Story:
        text = b"\0".join(word.encode() for word in (argv or (exe,)))
        return self.add(Kind.EXEC, path=exe, exe=exe, text=text, a0=len(argv), **_object(exe), **fields)

    def fork(self, child: int, parent: int, **fields: Any) -> Story:
        return self.add(Kind.FORK, pid=child, ppid=parent, result=child, **fields)

    def exit(self, pid: int = 10, code: int = 0, **fields: Any) -> Story:
        return self.add(Kind.EXIT, pid=pid, result=code, **fields)

    def open(self, path: str | bytes, mode: str = "r", *, created: bool = False, **fields: Any) -> Story:
        flags = fields.pop("flags", 0) | (Flag.CREATED if created else 0)
        inode: dict[str, int] = {} if "error" in fields else {"result": 3, **_object(path)}
        if "error" in fields:
            flags |= Flag.PATH_USER
        return self.add(Kind.OPEN, path=path, path2=path, a0=MODES[mode], flags=flags, **{**inode, **fields})

    def write(self, path: str | bytes, **fields: Any) -> Story:
        return self.add(Kind.WRITE, path=path, a0=10, **{**_object(path), **fields})

    def about(self, kind: Kind, path: str | bytes, **fields: Any) -> Story:
        """An event on the object at `path`."""
        return self.add(kind, path=path, **{**_object(path), **fields})

    def named(self, kind: Kind, path: str | bytes, path2: str | bytes = b"", **fields: Any) -> Story:
        """An event that takes names only: unlink, rename, link, symlink, mkdir, chmod, mount."""
        return self.add(kind, path=path, path2=path2, flags=Flag.PATH_USER, **fields)

    def between(self, kind: Kind, to: str | bytes, source: str | bytes, **fields: Any) -> Story:
        """An event on two open files."""
        second = {f"{name}2": value for name, value in _object(source).items() if name != "mode"}
        return self.add(kind, path=to, path2=source, **{**_object(to), **second, **fields})

    def lists(self, *folders: str, **fields: Any) -> Story:
        for folder in folders:
            self.about(Kind.GETDENTS, folder, **fields)
        return self

    def connect(self, address: str, port: int, error: str | None = None, **fields: Any) -> Story:
        family = 10 if ":" in address else 2
        more = {"error": error} if error else {}
        kind = fields.pop("kind", Kind.CONNECT)
        return self.add(
            kind,
            **{"address": address, "port": port, "family": family, "protocol": 6, **more, **fields},
        )

    def canary(self, path: str) -> Story:
        return self._fact(Kind.CANARY, path=path, text="ab" * 32)

    def _fact(self, kind: Kind, **fields: Any) -> Story:
        return self.add(kind, **{"pid": 0, "origin_phase": 0, "exe": b"", "tiers": Tier.AGENT, **fields})

    def _word(self, text: str | bytes) -> int:
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        return self.words.setdefault(raw, len(self.words))

    def batch(self) -> EventBatch:
        records = np.zeros(len(self.rows), EVENT)
        for at, row in enumerate(self.rows):
            for name, value in row.items():
                records[name][at] = value
        return EventBatch(records, list(self.words))


def judge(story: Story, rules: Policy | None = None, cuts: Sequence[int] = ()) -> list[Incident]:
    """The incidents of a story, fed in pieces that end at `cuts`."""
    return judge_batch(story.batch(), rules, cuts)


def judge_batch(batch: EventBatch, rules: Policy | None = None, cuts: Iterable[int] = ()) -> list[Incident]:
    engine = Engine(rules or policy(), SANDBOX, OFFSET_NS)
    borders = [0, *sorted(cuts), len(batch)]
    for start, stop in pairwise(borders):
        engine.feed(EventBatch(batch.records[start:stop].copy(), batch.strings))
    engine.finish()
    return engine.incidents()


def counted(incidents: Iterable[Incident], least: float = 0.8) -> dict[str, set[str]]:
    """Kind → outcomes of the incidents that a penalty would look at."""
    found: dict[str, set[str]] = {}
    for incident in incidents:
        if incident.confidence >= least and incident.phase != "unknown":
            found.setdefault(incident.kind, set()).add(incident.outcome)
    return found


def agent(**more: Any) -> Story:
    """A story whose phase agent has begun."""
    return Story(**more).phase("agent")


def _object(path: str | bytes) -> dict[str, int]:
    raw = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    return {"dev": 41, "ino": zlib.crc32(raw) | 1 << 32, "gen": 1, "mode": 0o100644}


def _address(text: str) -> Any:
    address = ipaddress.ip_address(text)
    packed = address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed
    return np.frombuffer(packed, np.uint8)
