"""What `guard run` says at its end, on stderr: the verdict for a person."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from invigilator.guard.cli.output import plain
from invigilator.incidents.records import Incident, Penalty, Report


def show(report: Report, report_file: Path | None, notice: str | None) -> None:
    """Print a report's summary: one line, the incidents, the penalty, and where to look further."""
    from rich.console import Console

    console = Console(
        stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=not sys.stderr.isatty()
    )
    console.print(_headline(report))
    if report.failure:
        console.print(f"guard: failed, which says nothing of the agent: {plain(report.failure)}")
    shown = [one for one in report.incidents if not one.monitor_only]
    if shown:
        _table(console, shown)
    console.print(_penalty_line(report.penalty, len(shown)))
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


def _table(console: object, incidents: list[Incident]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    assert isinstance(console, Console)
    table = Table(header_style="bold")
    for name in ("incident", "outcome", "phase", "step", "count", "weight", "what happened"):
        table.add_column(name, overflow="fold", no_wrap=name in ("outcome", "phase", "count", "weight"))
    for one in incidents:
        weight = f"{one.weight:g}" if one.counted else "-"
        cells = (one.kind, one.outcome, one.phase, one.step_id or "-", str(one.count), weight, one.summary)
        table.add_row(*(Text(plain(cell)) for cell in cells))
    console.print(table)


def _penalty_line(penalty: Penalty, incidents: int) -> str:
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
    return text if incidents or penalty.value else text + ", no incidents"
