"""Verdicts into the spool, and the verdicts on rollouts that a dead agent left without one."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from invigilator.guard import verdict
from invigilator.guard.failed import failed_report
from invigilator.guard.order import SandboxOrder
from invigilator.incidents.records import Report
from invigilator.incidents.rows import DetectorRow, Step, detector_rows, policy_rows, report_rows
from invigilator.incidents.spool import Spool
from invigilator.incidents.stamp import wall_offset_ns
from invigilator.profiles import canonical

_log = logging.getLogger("invigilator.keep")


class Keeper:
    """Writes verdicts into a spool; each returns once it is on disk."""

    def __init__(self, spool: Spool, marks: Path) -> None:
        self._spool = spool
        self._marks = marks
        self._known_policies: set[str] = set()

    def keep(
        self, order: SandboxOrder, report: Report, wall_offset: int, steps: Sequence[Step] = ()
    ) -> list[uuid.UUID]:
        """Store a verdict and all that it refers to: the ids of its segments."""
        tables = report_rows(report, wall_offset_ns=wall_offset, steps=steps)
        if self._is_new(report):
            text = canonical.dumps(order.policy.model_dump(mode="json")).decode()
            tables["policies"] = policy_rows(report.policy, text)
            tables["detectors"] = detector_rows(_detectors(order), report.policy.versions.detection)
        ids = [self._spool.append(name, rows, None).id for name, rows in tables.items() if rows.num_rows]
        self._known_policies.add(_policy_key(report))
        return ids

    def recover(self) -> int:
        """Report as failed the rollouts that a dead agent left; how many."""
        marks = sorted(self._marks.glob("*.json"))
        for mark in marks:
            try:
                self._report_lost(json.loads(mark.read_bytes()))
            except (ValueError, KeyError):
                _log.exception("%s tells of no rollout", mark)
            mark.unlink(missing_ok=True)
        return len(marks)

    def _report_lost(self, record: dict[str, object]) -> None:
        order = SandboxOrder.model_validate(record["order"])
        report = failed_report(
            order,
            "the agent died before the verdict, and the sandbox with it",
            sandbox_id=str(record["sandbox_id"]),
            started_at=datetime.fromisoformat(str(record["started_at"])),
        )
        self.keep(order, report, wall_offset_ns())

    def _is_new(self, report: Report) -> bool:
        return _policy_key(report) not in self._known_policies


def _policy_key(report: Report) -> str:
    return f"{report.policy.name} {report.policy.versions.model_dump_json()}"


def _detectors(order: SandboxOrder) -> list[DetectorRow]:
    policy = order.policy
    return [
        DetectorRow(
            detector_id=name,
            detector_version=found.version,
            kind=found.kind,
            channel=found.channel,
            summary=found.meaning,
            thresholds={
                t.name: policy.detectors.thresholds.get(name, {}).get(t.name, t.default)
                for t in found.thresholds
            },
            monitor_only=name in policy.detectors.monitor_only,
            weight=policy.penalty.weights.get(found.kind, 0.0),
        )
        for name, found in verdict.enabled(policy).items()
    ]
