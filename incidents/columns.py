"""The columns of records, as Arrow types."""

from __future__ import annotations

import pyarrow as pa

from invigilator.incidents import stamp

_TEXT = pa.string()
_TEXTS = pa.list_(pa.string())
_MAP = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("us", "UTC")
_COUNT = pa.uint64()
_NUMBER = pa.uint32()
_REAL = pa.float64()

_WHO = {"sandbox_id": stamp.UUID_BYTES, "run_id": _TEXT, "rollout_id": _TEXT, "attempt": _NUMBER}
_VERSIONS = {"detection_version": _TEXT, "penalty_version": _TEXT}
_REVISION = {"revision": _NUMBER, "recorded_at": _TIME}

COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "incidents": {
        **_WHO,
        **dict.fromkeys(("incident_id", "kind", "channel", "severity", "outcome", "use", "intent"), _TEXT),
        "confidence": _REAL,
        "phase": _TEXT,
        "step_id": _TEXT,
        "first_at": _TIME,
        "last_at": _TIME,
        "count": _COUNT,
        "summary": _TEXT,
        "evidence": _TEXTS,
        "detector_id": _TEXT,
        "detector_version": _NUMBER,
        "attack": _TEXTS,
        "monitor_only": pa.bool_(),
        "counted": pa.bool_(),
        "weight": _REAL,
        **_VERSIONS,
        **_REVISION,
    },
    "penalties": {
        **_WHO,
        "labels": _MAP,
        "status": _TEXT,
        "failure": _TEXT,
        "value": _REAL,
        "bound": pa.bool_(),
        "drop": pa.bool_(),
        "watermark": _COUNT,
        "enforcement": _MAP,
        "unwatched": _TEXTS,
        "by_step": pa.map_(pa.string(), _REAL),
        "reasons": _TEXTS,
        "confinement_version": _TEXT,
        **_VERSIONS,
        **_REVISION,
    },
    "rollouts": {
        **_WHO,
        "backend": _TEXT,
        "labels": _MAP,
        "policy_name": _TEXT,
        "confinement_version": _TEXT,
        **_VERSIONS,
        "started_at": _TIME,
        "ended_at": _TIME,
        "status": _TEXT,
        "failure": _TEXT,
        "exit_code": pa.int32(),
        "exit_reason": _TEXT,
        "phases": _TEXTS,
        "incidents": _NUMBER,
        "counted_incidents": _NUMBER,
        "report": _TEXT,
        **_REVISION,
    },
    "sandboxes": {
        **_WHO,
        "backend": _TEXT,
        "labels": _MAP,
        "policy_name": _TEXT,
        "boot_id": stamp.UUID_BYTES,
        "wall_offset_ns": pa.int64(),
        "started_at": _TIME,
        "ended_at": _TIME,
        "status": _TEXT,
        "watermark": _COUNT,
        "enforcement": _MAP,
        "produced": _COUNT,
        "stored": _COUNT,
        "lost": _COUNT,
        "shipped": _COUNT,
        "lost_by": pa.map_(pa.string(), _COUNT),
        **_REVISION,
    },
    "steps": {
        **_WHO,
        "step": _NUMBER,
        "step_id": _TEXT,
        "actor": _TEXT,
        "phase": _TEXT,
        "command": _TEXT,
        "started_at": _TIME,
        "ended_at": _TIME,
        "exit_code": pa.int32(),
        "exit_reason": _TEXT,
        "output_bytes": _COUNT,
    },
    "policies": {
        "name": _TEXT,
        "confinement_version": _TEXT,
        **_VERSIONS,
        "text": _TEXT,
        "source": _TEXT,
        "recorded_at": _TIME,
    },
    "detectors": {
        "detector_id": _TEXT,
        "detector_version": _NUMBER,
        "kind": _TEXT,
        "channel": _TEXT,
        "summary": _TEXT,
        "thresholds": _TEXT,
        "monitor_only": pa.bool_(),
        "weight": _REAL,
        "detection_version": _TEXT,
        "recorded_at": _TIME,
    },
    "reviews": dict.fromkeys(("incident_id", "decision", "reviewer", "comment"), _TEXT)
    | {"reviewed_at": _TIME},
    "falco_alerts": {"at": pa.timestamp("ns", "UTC")}
    | dict.fromkeys(
        ("alert_id", "rule", "priority", "output", "fields", "container_id", "container_name"), _TEXT
    )
    | {"hostname": _TEXT, "source": _TEXT, "tags": _TEXTS},
    "deliveries": {
        "answered_at": _TIME,
        "caller": _TEXT,
        "run_id": _TEXT,
        "rollout_id": _TEXT,
        "attempt": _NUMBER,
        "revision": _NUMBER,
        "value": _REAL,
        "drop": pa.bool_(),
        "pinned_version": _TEXT,
        "as_of": _TIME,
    },
    "audit": {"at": _TIME}
    | dict.fromkeys(("who", "token_id", "role", "project", "action", "subject", "before", "after"), _TEXT),
    "coverage": {**_WHO, "class": _TEXT, "state": _TEXT, "lost": _COUNT, **_REVISION},
}
"""Table → column → Arrow type, without the stamped columns; checked against the schema by a test."""
