"""`guard audit`: who changed what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from invigilator.guard.cli.server import JsonOption, LimitOption, ServerOption, chosen, client

COLUMNS = ("when", "who", "role", "project", "action", "subject", "before", "after")
BRIEF = ("when", "who", "action", "subject")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(audit)


def audit(
    action: Annotated[
        str | None, typer.Option(metavar="WHAT", help="Only this: review, token.create, forget …")
    ] = None,
    who: Annotated[str | None, typer.Option(metavar="NAME", help="Of this token or user.")] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="ID", help="Of this incident, token, table …")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(metavar="TIME", help="From then on; UTC unless it says otherwise.")
    ] = None,
    limit: LimitOption = 100,
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """List changes, the latest first: who, when, what it was and is. Nothing is ever taken off this list.

    \b
    Example:
      guard audit --action token.create --since 2026-11-01
    """
    from invigilator.guard.cli.output import print_json, print_table

    at = None
    if since is not None:
        at = (since if since.tzinfo else since.replace(tzinfo=UTC)).isoformat()
    with client(server) as record:
        found = record.listed("audit", limit, **chosen(action=action, who=who, subject=subject, since=at))
    if json_output:
        print_json(found)
        return
    names = ("at", *COLUMNS[1:])
    print_table(COLUMNS, [tuple(one[name] for name in names) for one in found], brief=BRIEF)
