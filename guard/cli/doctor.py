"""`guard doctor`: what this machine can observe and enforce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from invigilator.guard.doctor import Examination

CANNOT_RUN = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say, tier by tier, what this machine can observe and enforce, why not, and what to install.

    Everything is tried, nothing is left behind. Exit status: 0 when `guard run` works here, 3 when not.
    """
    from invigilator.guard.cli.output import print_json
    from invigilator.guard.doctor import examine
    from invigilator.guard.home import Home

    found = examine(Home.locate())
    if json_output:
        print_json(found.to_json())
    else:
        show(found)
    if not found.can_run:
        raise typer.Exit(CANNOT_RUN)


def show(found: Examination) -> None:
    """Print the findings by tier and what follows from them."""
    from invigilator.guard.cli.output import print_table
    from invigilator.guard.doctor import OFFLINE_COMMANDS, TIERS

    print(f"{found.kernel} on {found.machine}\n")
    rows = [
        (TIERS[item.tier], item.name, item.state, item.detail, item.gives, item.fix or "-")
        for item in found.findings
    ]
    print_table(("tier", "what", "works", "found", "for", "to do"), rows)
    if found.can_run:
        print("\nguard run works here.")
        return
    print("\nguard run does not work here; it lacks:")
    for item in found.missing:
        print(f"  {item.name}: {item.detail}" + (f" → {item.fix}" if item.fix else ""))
    print(f"These work all the same: guard {', '.join(OFFLINE_COMMANDS)}")
