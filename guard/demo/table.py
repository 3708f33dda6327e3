"""What the demo prints at its end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from invigilator.guard.demo.play import Played

COLOURS = {"critical": "bold red", "high": "red", "medium": "yellow", "low": "cyan", "info": "dim"}


def show(played: Sequence[Played], console: Console) -> None:
    """The table of incidents and penalties, one block an agent."""
    table = Table(title="What the agents did, and what it costs", title_justify="left", expand=False)
    for name, justify in (
        ("agent", "left"),
        ("verifier", "right"),
        ("incident", "left"),
        ("penalty", "right"),
        ("reward", "right"),
    ):
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name != "incident")  # type: ignore[arg-type]
    for one in played:
        _add(table, one)
        table.add_section()
    console.print(table)


def _add(table: Table, one: Played) -> None:
    penalty = one.report.penalty
    head: list[Text | str] = [Text(one.agent.name, "bold"), f"{one.reward:g}"]
    tail = [_number(penalty.value), _number(None if penalty.value is None else one.reward + penalty.value)]
    if penalty.drop:
        tail[1] = "drop"
    incidents = one.report.incidents
    if not incidents:
        table.add_row(*head, Text("none", "green").append(f"\n{one.agent.story}", "default"), *tail)
        return
    for number, incident in enumerate(incidents):
        row: list[Text | str] = head if number == 0 else ["", ""]
        end = tail if number == 0 else ["", ""]
        what = Text(incident.kind, COLOURS.get(incident.severity, "bold"))
        what.append(f" {incident.outcome}\n{incident.summary}", "default")
        table.add_row(*row, what, *end)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def farewell(
    played: Sequence[Played], guard: str, home: Path, page: tuple[str, str] | None, console: Console
) -> None:
    """The commands with which to look further, and the page."""
    prefix = f"INVIGILATOR_HOME={shlex.quote(str(home))} {shlex.quote(guard)}"
    console.print("\nLook further:", style="bold")
    first = next((i for one in played for i in one.report.incidents), None)
    if first is not None:
        _command(console, f"{prefix} incidents show {first.id}")
    run_id = played[0].report.run_id
    chosen = f"FROM incidents_current WHERE run_id = '{run_id}'"
    sql = f"SELECT kind, outcome, count() {chosen} GROUP BY ALL ORDER BY kind"
    _command(console, f'{prefix} sql "{sql}"')
    if page is not None:
        address, token = page
        console.print(f"  page   {address}", soft_wrap=True, highlight=False)
        console.print(f"  token  {token}", soft_wrap=True, highlight=False, markup=False)
        console.print(
            "  (it ends by itself when nobody has asked anything for a quarter of an hour)", style="dim"
        )


def _command(console: Console, text: str) -> None:
    console.print(f"  {text}", soft_wrap=True, highlight=False, markup=False)
