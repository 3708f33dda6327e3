"""`guard forget`: take a rollout's or a project's data out of the store, for good."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from invigilator.guard.cli.server import JsonOption, ServerOption, client, named_or_none


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("forget")(forget)


def forget(
    rollout: Annotated[
        str | None, typer.Option(metavar="ID", help="This rollout.", callback=named_or_none)
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")] = None,
    project: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="All rollouts with this label `project`.", callback=named_or_none),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """Take a rollout's or a project's data out of every table, for good. The audit says who did it.

    \b
    Examples:
      guard forget --rollout r1 --run run-7
      guard forget --project code --yes
    """
    from invigilator.guard.cli.output import plain, print_json

    if (rollout is None) == (project is None) or (project is not None and run_id is not None):
        raise typer.BadParameter("give either --rollout (and --run) or --project")
    order: dict[str, Any] = {"project": project} if project else {"rollout_id": rollout, "run_id": run_id}
    with client(server) as record:
        if not yes:
            confirm(record.forget({**order, "dry_run": True}))
        done = record.forget(order)
    if json_output:
        print_json(done)
        return
    rows = ", ".join(f"{count} of {table}" for table, count in done["rows"].items()) or "none"
    print(plain(f"forgotten: {done['sandboxes']} sandboxes; rows: {rows}"))


def confirm(found: dict[str, Any]) -> None:
    """Have a person at a terminal say yes; elsewhere --yes has to."""
    from invigilator.guard.cli.output import plain

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter("nobody is there to be asked: give --yes")
    names = ", ".join(found["rollouts"][:5])
    print(plain(f"{found['sandboxes']} sandboxes, of rollouts {names} …"), file=sys.stderr)
    typer.confirm("Take all of this out of the store, for good?", abort=True, err=True)
