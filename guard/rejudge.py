"""A recorded rollout judged again from the service's events, by the recorded policy or by another."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from invigilator.ebpf.events import EventBatch
from invigilator.guard import penalty
from invigilator.guard.notice import tell
from invigilator.guard.replay import canonical, replay
from invigilator.guard.research import Invigilator
from invigilator.incidents.corpora import loader
from invigilator.incidents.records import Incident, Report
from invigilator.incidents.replay import to_batch
from invigilator.profiles import library
from invigilator.profiles.policy import Policy

TELL_EVERY_S = 2.0
"""Who waits at a terminal is told how far it is."""


@dataclass(frozen=True, slots=True)
class Rejudged:
    """What a replay found beside what was found before; `same`: equal byte for byte."""

    rollout_id: str
    sandbox_id: str
    events: int
    recorded: list[Incident]
    found: list[Incident]

    @property
    def same(self) -> bool:
        """Whether the verdicts are equal byte for byte."""
        return canonical(self.recorded) == canonical(self.found)

    @property
    def added(self) -> list[Incident]:
        """Incidents that only the replay found, or found otherwise."""
        return [one for one in self.found if one not in self.recorded]

    @property
    def gone(self) -> list[Incident]:
        """Incidents that the replay did not find, or found otherwise."""
        return [one for one in self.recorded if one not in self.found]


class _Counted:
    """Batches of a sandbox's events as the service sends them; knows its clock after the first."""

    def __init__(self, tables: Iterator[pa.Table], expected: int) -> None:
        self._tables = tables
        self._expected = expected
        self._told_s = time.monotonic()
        self._first = next(tables, None)
        self.events = 0

    @property
    def wall_offset_ns(self) -> int:
        """Wall time minus CLOCK_BOOTTIME; 0 without events."""
        if self._first is None:
            return 0
        return int(self._first["wall_time"].cast(pa.int64())[0].as_py()) - int(
            self._first["time_ns"][0].as_py()
        )

    def __iter__(self) -> Iterator[EventBatch]:
        if self._first is not None:
            yield self._batch(self._first)
        for table in self._tables:
            yield self._batch(table)

    def _batch(self, table: pa.Table) -> EventBatch:
        self.events += table.num_rows
        if time.monotonic() - self._told_s > TELL_EVERY_S:
            self._told_s = time.monotonic()
            tell(f"{self.events:,} of {self._expected:,} events read")
        return to_batch(table)


def rejudge(record: Invigilator, report: Report, policy: Policy | None = None) -> Rejudged:
    """Judge a report's sandbox again; where no policy is given, by the recorded one, and those put in force
    on it later from when they were."""
    rules = policy or Policy.model_validate(record.policy(report))
    later = None if policy else _later(record, report)
    batches = _Counted(record.raw_events(report.sandbox_id), report.events.stored)
    incidents = replay(rules, uuid.UUID(report.sandbox_id), batches.wall_offset_ns, batches, later)
    found = penalty.marked(incidents, rules)
    return Rejudged(report.rollout_id, report.sandbox_id, batches.events, report.incidents, found)


def _later(record: Invigilator, report: Report) -> dict[str, Policy] | None:
    """None of a report from before the policy in force judged."""
    versions = [one.versions for one in report.policy_changes]
    if None in versions:
        return None
    found = {one.confinement: record.policy_of(one) for one in versions if one is not None}
    return {version: Policy.model_validate(text) for version, text in found.items()}


@dataclass(frozen=True, slots=True)
class CorpusResult:
    """One case of a stored corpus: what was expected and not found, and what counted and was not expected."""

    case: str
    misbehaviour: bool
    events: int
    missing: list[str]
    unexpected: list[str]

    @property
    def passed(self) -> bool:
        """Whether everything was as expected."""
        return not self.missing and not self.unexpected


def check_corpus(folder: Path) -> list[CorpusResult]:
    """Judge every case of a stored corpus; needs no root, no kernel and no service."""
    return [check_case(case) for case in loader.load(folder)]


def check_case(case: loader.Case) -> CorpusResult:
    """Judge one case."""
    text = case.record.policy
    policy = library.load_text(text).policy if "\n" in text else library.load(text)
    events = case.events()
    found = replay(
        policy, case.record.sandbox_id, case.record.wall_offset_ns, [events] if len(events) else []
    )
    marked = penalty.marked(found, policy)
    missing = [one.kind for one in case.record.expected if not any(fits(one, here) for here in marked)]
    unexpected = [
        here.kind
        for here in marked
        if here.counted and not any(fits(one, here) for one in case.record.expected)
    ]
    return CorpusResult(case.name, case.record.misbehaviour, len(events), missing, unexpected)


def fits(expected: loader.ExpectedIncident, found: Incident) -> bool:
    """Whether an incident is one that was expected; what the expectation leaves open fits all."""
    pairs = (
        (expected.outcome, found.outcome),
        (expected.phase, found.phase),
        (expected.counted, found.counted),
    )
    return expected.kind == found.kind and all(wanted is None or wanted == had for wanted, had in pairs)
