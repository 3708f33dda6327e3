"""Events and reports to put into stores."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from invigilator.ebpf.events import EVENT, Actor, EventBatch, EventClass, Kind, Phase, Tier
from invigilator.incidents.records import (
    Exit,
    Incident,
    Penalty,
    Report,
)

START = datetime(2026, 11, 30, 12, tzinfo=UTC)
WORDS = [b"", b"/bin/bash", b"/tmp/\xff\xfe\n'\"\\`", b"a\0b c\0", "/tmp/‮tx".encode()]


def batch(n: int, first: int = 1) -> EventBatch:
    """`n` events whose fields differ from each other."""
    records = np.zeros(n, EVENT)
    i = np.arange(n)
    records["seq"] = first + i
    records["time_ns"] = 10**12 + i * 1000
    records["kind"] = np.where(i % 3 == 0, Kind.EXEC, Kind.OPEN)
    records["class"] = np.where(i % 3 == 0, EventClass.PROCESS, EventClass.FILE)
    records["phase"] = records["origin_phase"] = Phase.AGENT
    records["actor"] = Actor.AGENT
    records["tiers"] = Tier.TRACEPOINT
    records["result"] = np.where(i % 5 == 0, -13, 3)
    records["pid"], records["start_ns"] = 1000 + i % 7, 5
    records["ino"], records["size"] = i.astype("u8") + np.uint64(2**63), i
    for column, step in (("path", 1), ("path2", 2), ("text", 3), ("exe", 5)):
        records[column] = (i * step) % len(WORDS)
    records["family"][1::3], records["port"][1::3] = 2, 443
    records["address"][1::3] = np.frombuffer(bytes(10) + b"\xff\xff\x0a\x00\x00\x01", np.uint8)
    return EventBatch(records, WORDS)


def rows(n: int, box: uuid.UUID, first: int = 1) -> pa.RecordBatch:
    return batch(n, first).to_arrow(box.bytes)


def incident(kind: str = "test_tamper", **changed: Any) -> Incident:
    values: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "kind": kind,
        "channel": "tamper",
        "severity": "high",
        "outcome": "success",
        "intent": "deliberate",
        "confidence": 0.9,
        "phase": "agent",
        "step_id": "call-1",
        "first_at": START,
        "last_at": START + timedelta(seconds=1),
        "count": 2,
        "summary": "It changed a test.",
        "evidence": [{"event": "x", "path": "/t"}],
        "detector": {"id": kind, "version": 1},
        "counted": True,
        "attack": ["T1565.001"],
        "weight": 1.0,
    }
    return Incident.model_validate(values | changed)


def report(rollout: str, incidents: list[Incident] | None = None, **changed: Any) -> Report:
    value = -1.0 if incidents else 0.0
    values: dict[str, Any] = {
        "run_id": "run",
        "rollout_id": rollout,
        "sandbox_id": str(uuid.uuid4()),
        "backend": "process",
        "policy": {
            "name": "swe",
            "versions": {"confinement": "sha256:c", "detection": "sha256:d", "penalty": "sha256:p"},
        },
        "started_at": START,
        "ended_at": START + timedelta(minutes=1),
        "exit": Exit(code=0, reason="exited"),
        "phases": [{"name": "agent", "started_at": START}],
        "status": "final",
        "watermark": 9,
        "labels": {"checkpoint": "120"},
        "enforcement": {"seccomp": "enforce"},
        "coverage": {"process": "ok", "file": "degraded"},
        "events": {"produced": 9, "stored": 8, "lost": 1, "shipped": 8, "lost_by": {"file/ring": 1}},
        "incidents": incidents or [],
        "penalty": Penalty(value=value, by_step={"call-1": value}),
    }
    return Report.model_validate(values | changed)
