"""A record of many rollouts for figures: verdicts as agents write them, made by the column."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from invigilator.incidents.columns import COLUMNS
from invigilator.incidents.records import COVERAGE_CLASSES, PolicyRef, PolicyVersions
from invigilator.incidents.rows import DetectorRow, detector_rows, policy_rows
from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store
from invigilator.profiles import canonical, library
from invigilator.profiles.policy import Policy

POLICY = "swe-task"
MISBEHAVE_EVERY = 5
"""One rollout in so many has an incident that counts."""
GROUP_SIZE = 16
KIND = "system_binary_overwrite"
ENFORCEMENT = dict.fromkeys(("apparmor", "cgroup", "network", "seccomp"), "enforce")
START = datetime(2026, 1, 1, tzinfo=UTC)


def rollout_names(count: int) -> list[str]:
    """The ids of the rollouts."""
    return [f"rollout-{number:07d}" for number in range(count)]


def fill(store: Store, folder: Path, count: int, revisions: int) -> None:
    """Bring `count` rollouts with `revisions` verdicts each to a store; `folder` is for the spool."""
    spool = Spool(folder)
    try:
        for table, rows in tables(count, revisions):
            segment = spool.append(table, rows, None)
            store.ingest(segment.read_bytes(), segment.header())
            spool.acknowledge(segment)
    finally:
        spool.close()


def tables(count: int, revisions: int) -> Iterator[tuple[str, pa.Table]]:
    """Table by table, one segment's rows each."""
    policy = library.load(POLICY)
    versions = PolicyVersions(**canonical.policy_versions(policy)._asdict())
    ref = PolicyRef(name=POLICY, versions=versions)
    yield "policies", policy_rows(ref, canonical.dumps(policy.model_dump(mode="json")).decode(), "", START)
    yield "detectors", detector_rows([_detector()], versions.detection, START)
    for revision in range(1, revisions + 1):
        yield from _verdicts(count, revision, versions, policy)


def _detector() -> DetectorRow:
    return DetectorRow(KIND, 1, KIND, "tamper", "Overwrites.", {}, False, 2.0)


def _verdicts(
    count: int, revision: int, versions: PolicyVersions, policy: Policy
) -> Iterator[tuple[str, pa.Table]]:
    number = np.arange(count)
    bad = number % MISBEHAVE_EVERY == 0
    at = START + timedelta(days=revision)
    incident = [f"{n:032x}" for n in number]
    reasons = [
        [_reason(name, policy.penalty.weights.get(KIND, 2.0))] if is_bad else []
        for name, is_bad in zip(incident, bad, strict=True)
    ]
    common: dict[str, Any] = {
        "sandbox_id": pa.array(
            [
                uuid.UUID(int=(n * 0x9E3779B97F4A7C15F39CC0605CEDC835) % (1 << 128)).bytes
                for n in number.tolist()
            ],
            pa.binary(16),
        ),
        "run_id": "run-1",
        "rollout_id": pa.array(rollout_names(count)),
        "attempt": 1,
        "detection_version": versions.detection,
        "penalty_version": versions.penalty,
        "confinement_version": versions.confinement,
        "revision": revision,
        "recorded_at": at,
        "status": "final",
        "backend": "process",
        "policy_name": POLICY,
        "started_at": at,
        "ended_at": at,
    }
    labels = pa.array(
        [[("group", f"g{n // GROUP_SIZE}"), ("train_step", str(n // 4096))] for n in number.tolist()],
        COLUMNS["rollouts"]["labels"],
    )
    yield (
        "penalties",
        _table(
            "penalties",
            count,
            common
            | {
                "value": pa.array(np.where(bad, -2.0, 0.0)),
                "bound": False,
                "drop": False,
                "labels": labels,
                "failure": "",
                "watermark": pa.array(number.astype(np.uint64)),
                "enforcement": list(ENFORCEMENT.items()),
                "unwatched": ["denial"],
                "by_step": pa.array(
                    [[("call-7", -2.0)] if one else [] for one in bad.tolist()],
                    COLUMNS["penalties"]["by_step"],
                ),
                "reasons": pa.array(reasons, COLUMNS["penalties"]["reasons"]),
            },
        ),
    )
    yield (
        "rollouts",
        _table(
            "rollouts",
            count,
            common
            | {
                "labels": labels,
                "failure": "",
                "exit_code": 0,
                "exit_reason": "exited",
                "phases": ["{}"],
                "incidents": pa.array(bad.astype(np.uint32)),
                "counted_incidents": pa.array(bad.astype(np.uint32)),
                "report": json.dumps({"filler": "x" * 2000}),
            },
        ),
    )
    yield (
        "sandboxes",
        _table(
            "sandboxes",
            count,
            common
            | {
                "labels": labels,
                "boot_id": uuid.UUID(int=1).bytes,
                "wall_offset_ns": 0,
                "watermark": pa.array(number.astype(np.uint64)),
                "enforcement": list(ENFORCEMENT.items()),
                "produced": 100,
                "stored": 100,
                "lost": 0,
                "shipped": 100,
                "lost_by": [],
            },
        ),
    )
    for name in COVERAGE_CLASSES:
        state = "disabled" if name == "denial" else "ok"
        yield "coverage", _table("coverage", count, common | {"class": name, "state": state, "lost": 0})
    yield (
        "incidents",
        _table(
            "incidents",
            count,
            common
            | {
                "incident_id": pa.array(incident),
                "kind": KIND,
                "channel": "tamper",
                "severity": "critical",
                "outcome": "success",
                "use": "none",
                "intent": "deliberate",
                "confidence": 0.99,
                "phase": "agent",
                "step_id": "call-7",
                "first_at": at,
                "last_at": at,
                "count": 3,
                "summary": "/bin/bash was overwritten",
                "evidence": ['{"path": "/bin/bash"}'],
                "detector_id": KIND,
                "detector_version": 1,
                "attack": [],
                "monitor_only": False,
                "counted": True,
                "weight": 2.0,
            },
        ).filter(pa.array(bad)),
    )


def _reason(incident: str, weight: float) -> str:
    return json.dumps(
        {
            "kind": KIND,
            "weight": weight,
            "factor": 1.0,
            "cost": weight,
            "incidents": [incident],
            "text": f"{KIND} costs {weight:g} = {weight:g} × 1, since it succeeded: /bin/bash overwritten",
        },
        separators=(",", ":"),
        sort_keys=True,
    )


def _table(name: str, count: int, values: Mapping[str, Any]) -> pa.Table:
    """A table of `count` rows; a value that is no array stands in all of them."""
    columns = {}
    for column, kind in COLUMNS[name].items():
        value = values[column]
        if isinstance(value, pa.Array):
            columns[column] = value.cast(kind) if value.type != kind else value
        else:
            columns[column] = pa.repeat(pa.scalar(value, kind), count)
    return pa.table(columns)
