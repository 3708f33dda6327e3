"""Verdicts into the spool, and the verdicts on rollouts that a dead agent left without one."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from invigilator.guard import verdict
from invigilator.guard.failed import failed_report
from invigilator.guard.order import ATTACHED, SandboxOrder
from invigilator.incidents.records import PolicyRef, PolicyVersions, Report
from invigilator.incidents.rows import DetectorRow, Step, detector_rows, policy_rows, report_rows
from invigilator.incidents.spool import Spool, SpoolError
from invigilator.incidents.stamp import wall_offset_ns
from invigilator.profiles import canonical
from invigilator.profiles.canonical import policy_versions
from invigilator.profiles.policy import Policy

AFTER_A_DEATH = 2
"""Revision of the report on a rollout whose agent died: over a verdict's first one, which the dead agent may
have stored and told nobody, whatever the clocks of the two say."""
LINGER_S = 0.25
"""How long verdicts gather before they are written, while the store has not taken the last ones."""
_log = logging.getLogger("invigilator.keep")


@dataclass(slots=True)
class _Waiting:
    """One verdict's rows, until they are on disk."""

    tables: Mapping[str, pa.Table]
    done: Future[list[uuid.UUID]] = field(default_factory=Future)


class Keeper:
    """Writes verdicts into a spool; `keep` returns once they are on disk.

    Verdicts that come while others are being written go to disk together, one segment a table: a job that
    ends thousands of rollouts at once waits for a few writes, not for thousands.
    """

    def __init__(self, spool: Spool, marks: Path) -> None:
        self._spool = spool
        self._marks = marks
        self._known_policies: set[str] = set()
        self._queue: list[_Waiting] = []
        self._queueing = threading.Lock()
        self._writing = threading.Lock()

    def keep(
        self, order: SandboxOrder, report: Report, wall_offset: int, steps: Sequence[Step] = ()
    ) -> list[uuid.UUID]:
        """Store a verdict and all that it refers to: the ids of its segments. `SpoolError` if not."""
        at = datetime.now(UTC)
        tables = report_rows(report, wall_offset_ns=wall_offset, steps=steps, recorded_at=at)
        if self._is_new(report):
            text = canonical.dumps(order.policy.model_dump(mode="json")).decode()
            tables["policies"] = policy_rows(report.policy, text)
            tables["detectors"] = detector_rows(_detectors(order), report.policy.versions.detection, at)
        ids = self._write({name: rows for name, rows in tables.items() if rows.num_rows})
        self._known_policies.add(_policy_key(report))
        return ids

    def keep_policy(self, policy: Policy) -> None:
        """Store a policy that no verdict refers to, so that its version can be looked up."""
        ref = PolicyRef(name=policy.name, versions=PolicyVersions(**policy_versions(policy)._asdict()))
        text = canonical.dumps(policy.model_dump(mode="json")).decode()
        self._write({"policies": policy_rows(ref, text)})

    def _write(self, tables: Mapping[str, pa.Table]) -> list[uuid.UUID]:
        mine = _Waiting(tables)
        with self._queueing:
            self._queue.append(mine)
            first = len(self._queue) == 1
        if first:
            with self._writing:
                if self._spool.pending():
                    # The store is behind: a few large inserts help it more than many small ones.
                    time.sleep(LINGER_S)
                with self._queueing:
                    taken, self._queue = self._queue, []
                self._write_together(taken)
        return mine.done.result()

    def _write_together(self, taken: Sequence[_Waiting]) -> None:
        try:
            ids = []
            for name in dict.fromkeys(name for one in taken for name in one.tables):
                rows = pa.concat_tables([one.tables[name] for one in taken if name in one.tables])
                ids.append(self._spool.append(name, rows, None).id)
        except Exception as error:
            for one in taken:
                one.done.set_exception(error)
        else:
            for one in taken:
                one.done.set_result(ids)

    def recover(self) -> int:
        """Report as failed the rollouts that a dead agent left; how many. Those that the spool does not take
        now stay for the next agent: this one has to ship, so that the spool takes more."""
        marks, reported = sorted(self._marks.glob("*.json")), 0
        for mark in marks:
            try:
                self._report_lost(json.loads(mark.read_bytes()))
                reported += 1
            except SpoolError:
                _log.exception("%s has to wait", mark)
                continue
            except (ValueError, KeyError, TypeError, RecursionError):
                _log.exception("%s tells of no rollout", mark)
            mark.unlink(missing_ok=True)
        return reported

    def _report_lost(self, record: dict[str, object]) -> None:
        order = SandboxOrder.model_validate(record["order"])
        report = failed_report(
            order,
            "the agent died before the verdict, and "
            + ("nobody watched on" if order.backend == ATTACHED else "the sandbox with it"),
            sandbox_id=str(record["sandbox_id"]),
            started_at=datetime.fromisoformat(str(record["started_at"])),
            revision=AFTER_A_DEATH,
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
