"""Records as Arrow tables of the store's columns, for `Spool.append`.

    for table, rows in report_rows(report).items():
        spool.append(table, rows, None)

Columns that the spool stamps (`segment_id`, `day`, `node_id`) are not among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
from pydantic import BaseModel

from invigilator.incidents import stamp
from invigilator.incidents.records import Exit, PolicyRef, Report, Review

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
        "status": _TEXT,
        "value": _REAL,
        "bound": pa.bool_(),
        "drop": pa.bool_(),
        "by_step": pa.map_(pa.string(), _REAL),
        "reasons": _TEXTS,
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
    "coverage": {**_WHO, "class": _TEXT, "state": _TEXT, "lost": _COUNT, **_REVISION},
}
"""Table → column → Arrow type, without the stamped columns; checked against the schema by a test."""


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call of a sandbox. `step` is its ordinal in the events, `step_id` the harness's name of it."""

    step: int
    step_id: str
    actor: str
    phase: str
    command: Sequence[str]
    started_at: datetime
    ended_at: datetime
    exit: Exit | None = None
    output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DetectorRow:
    """One detector as it judged: its version, thresholds in force, and the weight of its kind."""

    detector_id: str
    detector_version: int
    kind: str
    channel: str
    summary: str
    thresholds: Mapping[str, float]
    monitor_only: bool
    weight: float


def report_rows(
    report: Report,
    *,
    wall_offset_ns: int,
    steps: Iterable[Step] = (),
    recorded_at: datetime | None = None,
) -> dict[str, pa.Table]:
    """Rows of a verdict: rollouts, sandboxes, coverage, penalties, and incidents and steps where there are any.

    `wall_offset_ns` is the one that the sandbox's events were spooled with. A replayed verdict takes the next
    `penalty.revision`; its steps need not be given again.
    """
    at = recorded_at or datetime.now(UTC)
    who = {
        "sandbox_id": UUID(report.sandbox_id).bytes,
        "run_id": report.run_id or "",
        "rollout_id": report.rollout_id,
        "attempt": report.attempt,
    }
    versions = {
        "detection_version": report.policy.versions.detection,
        "penalty_version": report.policy.versions.penalty,
    }
    revision = {"revision": report.penalty.revision, "recorded_at": at}
    found = {
        "rollouts": [who | versions | revision | _rollout(report)],
        "sandboxes": [who | revision | _sandbox(report, wall_offset_ns)],
        "coverage": [who | revision | row for row in _coverage(report)],
        "penalties": [who | versions | revision | _penalty(report)],
        "incidents": [who | versions | revision | row for row in _incidents(report)],
        "steps": [who | _step(step) for step in steps],
    }
    return {table: rows(table, values) for table, values in found.items() if values}


def policy_rows(
    policy: PolicyRef, text: str, source: str = "", recorded_at: datetime | None = None
) -> pa.Table:
    """One row of `policies`: `text` is the canonical JSON with defaults filled in, `source` the YAML."""
    row = {
        "name": policy.name,
        "confinement_version": policy.versions.confinement,
        "detection_version": policy.versions.detection,
        "penalty_version": policy.versions.penalty,
        "text": text,
        "source": source,
        "recorded_at": recorded_at or datetime.now(UTC),
    }
    return rows("policies", [row])


def detector_rows(
    detectors: Iterable[DetectorRow], detection_version: str, recorded_at: datetime | None = None
) -> pa.Table:
    """Rows of `detectors`."""
    at = recorded_at or datetime.now(UTC)
    made = [
        {
            **{name: getattr(d, name) for name in ("detector_id", "detector_version", "kind", "channel")},
            "summary": d.summary,
            "thresholds": _json(dict(d.thresholds)),
            "monitor_only": d.monitor_only,
            "weight": d.weight,
            "detection_version": detection_version,
            "recorded_at": at,
        }
        for d in detectors
    ]
    return rows("detectors", made)


def review_rows(reviews: Iterable[Review]) -> pa.Table:
    """Rows of `reviews`."""
    made = [
        {
            "incident_id": r.incident_id,
            "decision": r.decision,
            "reviewer": r.reviewer,
            "comment": r.comment,
            "reviewed_at": r.at,
        }
        for r in reviews
    ]
    return rows("reviews", made)


def rows(table: str, values: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Arrow table of `values`, each of which has exactly the columns of `table`."""
    columns = COLUMNS[table]
    for value in values:
        if set(value) != set(columns):
            raise ValueError(f"a row of {table} differs in {sorted(set(value) ^ set(columns))}")
    schema = pa.schema([pa.field(name, kind) for name, kind in columns.items()])
    return pa.table(
        {name: pa.array([_clean(value[name]) for value in values], kind) for name, kind in columns.items()},
        schema=schema,
    )


def _rollout(report: Report) -> dict[str, Any]:
    return {
        "backend": report.backend,
        "labels": list(report.labels.items()),
        "policy_name": report.policy.name,
        "confinement_version": report.policy.versions.confinement,
        "started_at": report.started_at,
        "ended_at": report.ended_at,
        "status": report.status,
        "failure": report.failure or "",
        "exit_code": report.exit.code if report.exit else None,
        "exit_reason": report.exit.reason if report.exit else "",
        "phases": [_json(phase) for phase in report.phases],
        "incidents": len(report.incidents),
        "counted_incidents": sum(incident.counted for incident in report.incidents),
        "report": _json(report),
    }


def _sandbox(report: Report, wall_offset_ns: int) -> dict[str, Any]:
    return {
        "backend": report.backend,
        "labels": list(report.labels.items()),
        "policy_name": report.policy.name,
        "boot_id": stamp.boot_id().bytes,
        "wall_offset_ns": wall_offset_ns,
        "started_at": report.started_at,
        "ended_at": report.ended_at,
        "status": report.status,
        "watermark": report.watermark,
        "enforcement": list(report.enforcement.items()),
        "produced": report.events.produced,
        "stored": report.events.stored,
        "lost": report.events.lost,
        "shipped": report.events.shipped,
        "lost_by": list(report.events.lost_by.items()),
    }


def _coverage(report: Report) -> list[dict[str, Any]]:
    lost: dict[str, int] = {}
    for reason, count in report.events.lost_by.items():
        name = reason.partition("/")[0]
        lost[name] = lost.get(name, 0) + count
    return [
        {"class": name, "state": state, "lost": lost.get(name, 0)} for name, state in report.coverage.items()
    ]


def _penalty(report: Report) -> dict[str, Any]:
    penalty = report.penalty
    return {
        "status": report.status,
        "value": penalty.value,
        "bound": penalty.bound,
        "drop": penalty.drop,
        "by_step": list(penalty.by_step.items()),
        "reasons": [_json(reason) for reason in penalty.reasons],
    }


def _incidents(report: Report) -> Iterable[dict[str, Any]]:
    for incident in report.incidents:
        row = incident.model_dump(exclude={"id", "detector", "evidence"})
        yield {
            **row,
            "incident_id": incident.id,
            "step_id": incident.step_id or "",
            "evidence": [_json(fact) for fact in incident.evidence],
            "detector_id": incident.detector.id,
            "detector_version": incident.detector.version,
        }


def _step(step: Step) -> dict[str, Any]:
    return {
        "step": step.step,
        "step_id": step.step_id,
        "actor": step.actor,
        "phase": step.phase,
        "command": " ".join(step.command),
        "started_at": step.started_at,
        "ended_at": step.ended_at,
        "exit_code": step.exit.code if step.exit else None,
        "exit_reason": step.exit.reason if step.exit else "",
        "output_bytes": step.output_bytes,
    }


def _json(value: Any) -> str:
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return json.dumps(plain, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def _clean(value: Any) -> Any:
    """Lone surrogates, by which Python carries bytes that are not UTF-8, as `\\udcHH`: Arrow text has none."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_clean(item) for item in value)
    return value
