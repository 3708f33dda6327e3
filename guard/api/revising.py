"""A dismissal, and its withdrawal, as a new revision of the verdict: the formula without what it rejects.

A review is durable before its revision is begun. The revision's tables follow one by one, `penalties` last,
in segments whose ids follow from what they hold: a service that ends in between goes on at its next start,
and nothing is there twice.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pydantic import ValidationError

from invigilator.guard import penalty
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.outbox import Outbox
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import fetch
from invigilator.incidents.records import Penalty, Report
from invigilator.incidents.rows import report_rows
from invigilator.incidents.store import Store, StoreError
from invigilator.profiles.policy import Policy

TABLES = ("incidents", "coverage", "sandboxes", "rollouts", "penalties")
"""In the order in which they are written: a revision is whole with its penalty."""
NAMES = uuid.UUID("5f0b1c56-2a0e-4c1e-9d54-6c1f2f9a7e11")
FLUSH_EVERY_S = 1.0
_log = logging.getLogger("invigilator.serve")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Whose verdict it is."""

    run_id: str
    rollout_id: str
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Revised:
    """What a review did to the verdict: the penalties before and after, equal where it did nothing. `why`
    says what kept it from being judged anew."""

    before: Penalty | None
    after: Penalty | None
    why: str = ""


def revise(store: Store, outbox: Outbox, box: Sandbox) -> Revised:
    """Make the verdict on a sandbox agree with the reviews of its incidents; does nothing where it does."""
    found = fetch(store, "verdict_of", {**_parameters(box)})
    if not found:
        return Revised(None, None, "no verdict on its rollout is in the store")
    report = Report.model_validate_json(found[0]["report"])
    if (found[0]["priced"] or 0) < report.penalty.revision:
        _write(store, outbox, report, "unfinished", ("penalties",))
    policy = _policy(store, report)
    if policy is None:
        why = "the policy that judged it is not in the store, or does not read"
        return Revised(report.penalty, report.penalty, why)
    ids = json.dumps([one.id for one in report.incidents])
    dismissed = {row["incident_id"] for row in fetch(store, "dismissed_of", {"ids": ids})}
    new = _judged_anew(report, policy, dismissed)
    if new is None:
        return Revised(report.penalty, report.penalty)
    _write(store, outbox, new, " ".join(sorted(dismissed)), TABLES)
    return Revised(report.penalty, new.penalty)


def catch_up(store: Store, outbox: Outbox) -> int:
    """Store what an earlier end left, and make the revisions it had not come to; how many sandboxes."""
    outbox.flush(store)
    left = fetch(store, "unrevised", {})
    for row in left:
        revise(store, outbox, Sandbox(row["run_id"], row["rollout_id"], row["sandbox_id"]))
    return len(left)


async def keep_up(gate: StoreGate, outbox: Outbox) -> None:
    """Catch up once the store is open, then bring what is spooled to it every second; until cancelled."""
    behind = True
    while True:
        if (behind or outbox.waiting) and gate.state in ("ready", "opening"):
            try:
                await gate.run(functools.partial(catch_up if behind else _flush, outbox=outbox))
                behind = False
            except (ProblemError, StoreError, ValueError) as error:
                _log.warning("rows of the service's own wait: %s", error)
        await asyncio.sleep(FLUSH_EVERY_S)


def _flush(store: Store, outbox: Outbox) -> int:
    outbox.flush(store)
    return 0


def _judged_anew(report: Report, policy: Policy, dismissed: set[str]) -> Report | None:
    """The report's next revision; None where it would say the same."""
    incidents = penalty.marked(report.incidents, policy, dismissed=dismissed)
    before = report.penalty
    after = penalty.compute(
        report.incidents,
        policy,
        report.coverage,
        report.status,
        dismissed=dismissed,
        revision=before.revision,
    )
    if after == before and incidents == report.incidents:
        return None
    after = after.model_copy(update={"revision": before.revision + 1})
    return report.model_copy(update={"incidents": incidents, "penalty": after})


def _write(store: Store, outbox: Outbox, report: Report, what: str, names: tuple[str, ...]) -> None:
    clock = fetch(store, "clock_of", {"sandbox_id": report.sandbox_id})[0]
    tables = report_rows(report, wall_offset_ns=int(clock["wall_offset_ns"]), recorded_at=datetime.now(UTC))
    boot = pa.array([uuid.UUID(clock["boot_id"]).bytes], pa.binary(16))
    boxes = tables["sandboxes"]
    tables["sandboxes"] = boxes.set_column(boxes.column_names.index("boot_id"), boxes.field("boot_id"), boot)
    for name in names:
        if name in tables:
            key = f"{report.sandbox_id} {report.penalty.revision} {name} {what}"
            outbox.spool(name, tables[name], uuid.uuid5(NAMES, key))
    outbox.flush(store)


def _policy(store: Store, report: Report) -> Policy | None:
    versions = report.policy.versions
    found = fetch(
        store,
        "policy",
        {"detection": versions.detection, "penalty": versions.penalty, "confinement": versions.confinement},
    )
    try:
        return Policy.model_validate_json(found[0]["text"]) if found else None
    except ValidationError:
        return None


def _parameters(box: Sandbox) -> dict[str, str]:
    return {"run_id": box.run_id, "rollout_id": box.rollout_id, "sandbox_id": box.sandbox_id}
