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
from invigilator.incidents.columns import COLUMNS
from invigilator.incidents.records import Exit, Incident, PolicyRef, Report, Review


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
    """Rows of a verdict: rollouts, sandboxes, coverage, penalties; incidents and steps where there are any.

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
        "incidents": [who | versions | revision | row for row in _incidents(report.incidents)],
        "steps": [who | _step(step) for step in steps],
    }
    return {table: rows(table, values) for table, values in found.items() if values}


def incident_rows(
    incidents: Iterable[Incident], who: Mapping[str, Any], *, recorded_at: datetime, revision: int = 1
) -> pa.Table:
    """Rows of `incidents` beside a verdict, from another sensor. `who`: whose they are, and the versions."""
    stamp_of = {"revision": revision, "recorded_at": recorded_at}
    return rows("incidents", [{**who, **stamp_of, **row} for row in _incidents(incidents)])


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
        {name: pa.array([clean(value[name]) for value in values], kind) for name, kind in columns.items()},
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
        "labels": list(report.labels.items()),
        "status": report.status,
        "failure": report.failure or "",
        "value": penalty.value,
        "bound": penalty.bound,
        "drop": penalty.drop,
        "watermark": report.watermark,
        "enforcement": list(report.enforcement.items()),
        "unwatched": sorted(name for name, state in report.coverage.items() if state == "disabled"),
        "confinement_version": report.policy.versions.confinement,
        "by_step": list(penalty.by_step.items()),
        "reasons": [_json(reason) for reason in penalty.reasons],
    }


def _incidents(incidents: Iterable[Incident]) -> Iterable[dict[str, Any]]:
    for incident in incidents:
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


def clean(value: Any) -> Any:
    """Lone surrogates, which carry bytes that are not UTF-8 in Python, as `\\udcHH`: Arrow text has none."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, tuple):
        return tuple(clean(item) for item in value)
    if isinstance(value, dict):
        return {clean(name): clean(item) for name, item in value.items()}
    return value
