"""What `guard run` says at its end, on stderr: the verdict for a person."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from invigilator.guard.cli.output import plain
from invigilator.incidents.records import Incident, Penalty, Report

if TYPE_CHECKING:
    from rich.console import Console

ENDINGS = {
    "exited": "ended",
    "signalled": "was ended by a signal",
    "timeout": "ran out of time and was ended",
    "oom": "ran out of memory",
    "limit": "was ended at a limit of the policy",
}


def show(report: Report, report_file: Path | None, notice: str | None) -> None:
    """Print a report's summary: one line, the incidents, the penalty, and where to look further."""
    from rich.console import Console

    console = Console(
        stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=not sys.stderr.isatty()
    )
    console.print(_headline(report))
    for line in _endings(report):
        console.print(line)
    if report.failure:
        console.print(f"guard: failed, which says nothing of the agent: {plain(report.failure)}")
    shown = [one for one in report.incidents if not one.monitor_only]
    if shown:
        _table(console, shown)
    console.print(_penalty_line(report.penalty, shown))
    for line in _free(report, shown):
        console.print(line)
    if notice is not None:
        waiting = report.events.stored - report.events.shipped
        console.print(
            f"guard: {waiting:,} events wait in the spool, safe but not in the store: {plain(notice)}"
        )
    if report_file is not None:
        console.print(f"guard: report in {plain(report_file)}")
    if shown:
        name = shlex.quote(plain(report.rollout_id))
        console.print(f"guard: look further with: guard incidents list --rollout {name}")


def _headline(report: Report) -> str:
    parts = [
        f"guard: rollout {plain(report.rollout_id)}",
        f"policy {plain(report.policy.name)}",
        report.status,
        f"{report.events.produced:,} events, {report.events.lost:,} lost",
    ]
    weak = [name for name, state in report.coverage.items() if state in ("degraded", "failed")]
    if weak:
        parts.append(f"coverage degraded: {', '.join(weak)}")
    return " · ".join(parts)


def _endings(report: Report) -> list[str]:
    """How phases ended, where the command's own exit status does not say it."""
    lines = []
    for phase in report.phases:
        if phase.exit is None or (phase.name == "agent" and phase.exit.reason == "exited"):
            continue
        what = "the command" if phase.name == "agent" else phase.name
        lines.append(f"guard: {what} {ENDINGS[phase.exit.reason]} (exit status {phase.exit.code})")
    return lines


def _table(console: Console, incidents: list[Incident]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for name in ("incident", "outcome", "where", "what happened"):
        table.add_column(name, overflow="fold", no_wrap=name in ("incident", "outcome"))
    for one in incidents:
        where = f"{one.phase} {one.step_id}" if one.step_id else one.phase
        table.add_row(*(Text(plain(cell)) for cell in (one.kind, one.outcome, where, one.summary)))
    console.print(table)


def _penalty_line(penalty: Penalty, shown: list[Incident]) -> str:
    if penalty.value is None:
        return "guard: penalty unknown: the evidence is incomplete (null, never 0); leave the rollout out"
    text = f"guard: penalty {penalty.value:g}"
    if penalty.bound:
        text += " at least, as the evidence is incomplete"
    if penalty.drop:
        text += "; drop the rollout"
    if penalty.reasons:
        text += " = " + " ".join(
            f"− {r.weight:g} × {r.factor:g} ({r.kind})" for r in penalty.reasons if r.cost
        )
    return text if shown or penalty.value else text + ", no incidents"


def _free(report: Report, shown: list[Incident]) -> list[str]:
    """Why incidents cost nothing: without it, a 0 beside a list of them looks like a fault."""
    if report.penalty.value is None:
        return []
    free = [one for one in shown if not one.counted]
    weightless = ", ".join(sorted({one.kind for one in free if not one.weight}))
    others = ", ".join(sorted({f"{one.kind} ({one.outcome})" for one in free if one.weight}))
    lines = []
    if weightless:
        policy = plain(report.policy.name)
        lines.append(f"guard: weighs 0 under policy {policy} (penalty.weights): {plain(weightless)}")
    if others:
        lines.append(f"guard: not counted, as only tried or not sure enough: {plain(others)}")
    return lines
