"""`guard retention`: for how long the store keeps rows."""

from __future__ import annotations

from typing import Annotated

import typer

from invigilator.guard.cli.server import JsonOption, ServerOption, client

DAYS_MOST = 36_500


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("retention")(retention)


def retention(
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Of this table.", show_default="all")
    ] = None,
    days: Annotated[
        int | None,
        typer.Argument(metavar="[DAYS]", min=1, max=DAYS_MOST, help="Keep it for so many days from now on."),
    ] = None,
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """Say for how many days each table's rows are kept, or keep a table's for other than so far.

    What is older than that is dropped, for good. The audit says who changed it.

    \b
    Examples:
      guard retention
      guard retention events 14
    """
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.errors import NotFoundError

    with client(server) as record:
        found = record.retention() if table is None or days is None else record.keep(table, days)
    if table is not None and table not in found:
        raise NotFoundError(f"no table {table!r}", fix=f"name one of {', '.join(found)}")
    if table is not None:
        found = {table: found[table]}
    if json_output:
        print_json(found)
        return
    print_table(("table", "days"), [(name, kept or "for good") for name, kept in found.items()])
