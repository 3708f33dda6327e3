"""A real `guard serve` over its socket, with the real store, and rollouts shipped as an agent ships them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from invigilator.guard.api.tokens import TokenFile
from invigilator.guard.home import Home
from invigilator.incidents.records import (
    DetectorRef,
    EventCounts,
    Exit,
    Incident,
    Penalty,
    PenaltyReason,
    PhaseRecord,
    PolicyRef,
    PolicyVersions,
    Report,
)
from invigilator.incidents.rows import policy_rows, report_rows
from invigilator.incidents.spool import Spool

START_TIMEOUT_S = 60.0
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
VERSIONS = PolicyVersions(confinement="sha256:c0", detection="sha256:d0", penalty="sha256:e0")


@dataclass
class Service:
    """A running `guard serve` of its own home."""

    home: Home
    process: subprocess.Popen[bytes]
    port: int
    clients: list[httpx.Client] = field(default_factory=list)

    def client(self, token: str | None = None, *, tcp: bool = False) -> httpx.Client:
        """A client over the socket, or over TCP, with or without a token."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = None if tcp else httpx.HTTPTransport(uds=str(self.home.serve_socket))
        base = f"http://127.0.0.1:{self.port}" if tcp else "http://serve"
        made = httpx.Client(base_url=base, transport=transport, headers=headers, timeout=120)
        self.clients.append(made)
        return made

    def token(self, role: str, ttl_s: float | None = None) -> str:
        """A new token of a role."""
        return TokenFile(self.home.tokens).create(f"a {role}", role, ttl_s)[1]


def free_port() -> int:
    """A loopback port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(home: Home, *more: str, wait: bool = True, port: int | None = None) -> Iterator[Service]:
    """Run `guard serve` for `home`; ended by a signal at the end."""
    home.make()
    port = port or free_port()
    command = [sys.executable, "-m", "invigilator.guard.cli.main", "serve", "--home", str(home.root)]
    command += ["--listen", f"127.0.0.1:{port}", "--query-time", "3", *more]
    with (home.run / "test.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
    service = Service(home, process, port)
    try:
        if wait:
            wait_for_store(service)
        yield service
    finally:
        for client in service.clients:
            client.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)


def wait_for_store(service: Service, state: str = "ready") -> dict[str, Any]:
    """Wait until the service says that its store is in `state`."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    said: dict[str, Any] = {}
    while time.monotonic() < deadline_s:
        if service.process.poll() is not None:
            raise AssertionError((service.home.run / "test.log").read_text())
        try:
            said = service.client().get("/v1/health").json()
            if said["store"] == state:
                return said
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"the store is not {state}: {said}")


def incident(kind: str, number: int = 0, **changes: Any) -> Incident:
    """An incident; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "id": f"{kind}-{number}-{uuid.uuid4().hex[:8]}",
        "kind": kind,
        "channel": "tamper",
        "severity": "high",
        "outcome": "success",
        "confidence": 0.99,
        "phase": "agent",
        "step_id": "call-7",
        "first_at": NOW,
        "last_at": NOW,
        "count": 3,
        "summary": f"{kind} happened",
        "evidence": [{"path": "/bin/bash", "seq": 12}],
        "detector": DetectorRef(id=kind, version=1),
        "counted": True,
        "weight": 2.0,
    }
    return Incident(**{**fields, **changes})


def report(rollout_id: str, incidents: Sequence[Incident] = (), **changes: Any) -> Report:
    """A report on a rollout; `changes` replace its fields."""
    value = -sum(one.weight for one in incidents if one.counted) or 0.0
    reasons = [
        PenaltyReason(
            kind=one.kind, weight=one.weight, factor=1.0, cost=one.weight, incidents=[one.id], text="t"
        )
        for one in incidents
        if one.counted
    ]
    by_step = {"call-7": value} if value else {}
    fields: dict[str, Any] = {
        "run_id": "run-1",
        "rollout_id": rollout_id,
        "sandbox_id": str(uuid.uuid4()),
        "backend": "process",
        "labels": {"checkpoint": "120"},
        "policy": PolicyRef(name="swe-task", versions=VERSIONS),
        "started_at": NOW,
        "ended_at": NOW + timedelta(seconds=5),
        "phases": [PhaseRecord(name="agent", started_at=NOW, exit=Exit(code=0, reason="exited"))],
        "exit": Exit(code=0, reason="exited"),
        "status": "final",
        "watermark": 100,
        "enforcement": {"seccomp": "enforce"},
        "coverage": {"file": "ok"},
        "events": EventCounts(produced=100, stored=100, lost=0, shipped=100),
        "incidents": list(incidents),
        "penalty": Penalty(value=value, by_step=by_step, reasons=reasons),
    }
    return Report(**{**fields, **changes})


def ship(service: Service, tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Spool rows and send each segment, as the agent does."""
    spool = Spool(folder)
    client = service.client()
    try:
        for table, rows in tables.items():
            segment = spool.append(table, rows, None)
            headers = {"X-Segment": segment.header()}
            answer = client.post("/v1/segments", content=segment.read_bytes(), headers=headers)
            assert answer.status_code == 200, answer.text
            spool.acknowledge(segment)
    finally:
        spool.close()


def ship_report(service: Service, made: Report, folder: Path) -> None:
    """Ship all rows of a report."""
    ship(service, report_rows(made, wall_offset_ns=0), folder)


def ship_policy(service: Service, cap: float, folder: Path) -> None:
    """Ship the text of the policy that `report` names, with a cap."""
    text = json.dumps({"penalty": {"cap": cap}})
    ship(service, {"policies": policy_rows(PolicyRef(name="swe-task", versions=VERSIONS), text)}, folder)
