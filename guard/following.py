"""A rollout followed while it runs, as its events reach the store, until it ends or there is enough."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from invigilator.guard.errors import NotFoundError
from invigilator.guard.learning import Intake
from invigilator.guard.notice import tell

if TYPE_CHECKING:
    from invigilator.guard.research import Invigilator
    from invigilator.incidents.records import Report
    from invigilator.profiles.learning import Recording

POLL_S = 0.5
"""Events reach the store about once a second."""
TELL_EVERY_S = 2.0
_LATEST = (
    "SELECT toString(sandbox_id) AS sandbox_id FROM events WHERE rollout_id = {rollout_id:String}"
    " AND (empty({run_id:String}) OR run_id = {run_id:String})"
    " GROUP BY sandbox_id ORDER BY max(wall_time) DESC LIMIT 1"
)


def follow(
    record: Invigilator, rollout_id: str, run_id: str | None, enough: threading.Event
) -> tuple[Report | None, Recording]:
    """What the latest sandbox of a rollout does, and its report where it ended before there was `enough`.
    GuardError where it cannot be learned from."""
    sandbox_id = _sandbox(record, rollout_id, run_id, enough)
    intake, told_s = Intake(rollout_id), time.monotonic()
    while True:
        # Asked first: all events that an ended rollout's report speaks of can be read after it.
        report = _report(record, rollout_id, run_id, sandbox_id)
        stop = enough.is_set()
        for table in record.raw_events(sandbox_id, intake.last_seq):
            intake.take(table)
        if (report or stop) and intake.count < (report.events.stored if report else intake.last_seq):
            # A piece may have come after a later one.
            intake = Intake(rollout_id)
            for table in record.raw_events(sandbox_id):
                intake.take(table)
        if report is not None:
            return report, intake.ended(report)
        if stop:
            return None, intake.so_far(sandbox_id)
        if time.monotonic() - told_s > TELL_EVERY_S:
            told_s = time.monotonic()
            tell(f"{rollout_id}: {_progress(intake)}")
        enough.wait(POLL_S)


@contextlib.contextmanager
def until_interrupted(enough: threading.Event) -> Iterator[None]:
    """The first interrupt says that there is enough, the next ends the command."""

    def stop(number: int, frame: object) -> None:
        if enough.is_set():
            raise KeyboardInterrupt
        enough.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _sandbox(record: Invigilator, rollout_id: str, run_id: str | None, enough: threading.Event) -> str:
    waited = False
    while True:
        rows = cast("list[dict[str, Any]]", record.sql(_LATEST, rollout_id=rollout_id, run_id=run_id or ""))
        if rows:
            return str(rows[0]["sandbox_id"])
        if enough.is_set():
            raise NotFoundError(f"no event of rollout {rollout_id!r} has come", fix="check its id")
        if not waited:
            tell(f"{rollout_id}: waiting for its first events")
            waited = True
        enough.wait(POLL_S)


def _report(record: Invigilator, rollout_id: str, run_id: str | None, sandbox_id: str) -> Report | None:
    try:
        return record.rollout(rollout_id, run_id, sandbox_id=sandbox_id)
    except NotFoundError:
        return None


def _progress(intake: Intake) -> str:
    facts = intake.facts
    found = ((facts.uses, "uses of files"), (facts.connections, "connections"), (facts.names, "names"))
    counts = ", ".join(f"{len(some):,} {what}" for some, what in found)
    return f"{intake.count:,} events; {counts}; Ctrl-C writes the policy now"
