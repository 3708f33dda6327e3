"""`guard bench`: what the guard costs on this machine, as ratios against peers in the same run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.server import JsonOption

if TYPE_CHECKING:
    from invigilator.guard.bench.measure import Figure, Section


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    sections: Annotated[
        list[str] | None, typer.Argument(metavar="SECTION", help="Only these.", show_default="all")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A try of each in about a minute; not for quoting.")
    ] = False,
    events: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=30_000,
            help="Events of section queries; 100000000 for the full figure.",
            show_default="2 million",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the figures here, as JSON.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="Only list the sections.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Measure what the guard costs and how fast it is: medians, spread, and whether the aim is met.

    Needs root and a quiet machine. A run of everything takes about half an hour.

    \b
    Examples:
      guard bench outside inside
      guard bench --quick
      guard bench service
      guard bench queries --events 100000000
      guard bench --out figures.json
    """
    from invigilator.guard.bench import run
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.node import require_root

    if listing:
        rows = [(name, what) for name, (what, _) in run.SECTIONS.items()]
        if json_output:
            print_json([{"section": name, "measures": what} for name, what in rows])
        else:
            print_table(("section", "measures"), rows)
        return
    require_root("guard bench")
    results: dict[str, Section] = {}
    names = run.chosen(sections or [])
    for number, name in enumerate(names):
        print(f"guard bench: {name} ({number + 1} of {len(names)})", file=sys.stderr)
        results.update(run.measure([name], quick=quick, events=events))
        if not json_output:
            _show(results[name])
    if json_output:
        print_json(run.document(results))
    if out is not None:
        run.write(results, out)


def _show(section: Section) -> None:
    from invigilator.guard.cli.output import print_table

    print(f"\n{section.name}")
    print_table(
        ("figure", "median", "low", "high", "unit", "rounds", "aim", "met"), map(_row, section.figures)
    )
    for why in section.missing:
        print(f"not measured: {why}")


def _row(figure: Figure) -> tuple[object, ...]:
    name = f"{figure.name} ({figure.note})" if figure.note else figure.name
    numbers = (_number(figure.median), _number(figure.low), _number(figure.high))
    met = {True: "yes", False: "no", None: ""}[figure.met]
    return (name, *numbers, figure.unit, figure.rounds, figure.target or "", met)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"
