"""`guard token …`: who may ask the service over TCP."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from invigilator.guard.cli.server import JsonOption

DAY_S = 86_400.0
group = typer.Typer(
    name="token", help="Make, list and revoke access tokens.", no_args_is_help=True, rich_markup_mode=None
)


class Role(StrEnum):
    """Roles, from the least to the most."""

    node = "node"
    trainer = "trainer"
    researcher = "researcher"
    engineer = "engineer"
    admin = "admin"


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group)


@group.command()
def create(
    role: Annotated[
        Role, typer.Option(help="node ships; trainer reads penalties; researcher reads and reviews.")
    ],
    name: Annotated[str, typer.Option(help="Whose it is.")],
    days: Annotated[
        float | None, typer.Option(min=0, help="Ends after so many days.", show_default="never")
    ] = None,
) -> None:
    """Make a token and print it, this once: only its hash is kept.

    \b
    Example:
      guard token create --role trainer --name grpo-job --days 7
    """
    from invigilator.guard.api.tokens import TokenFile
    from invigilator.guard.home import Home

    home = Home.locate().make()
    print(TokenFile(home.tokens).create(name, role.value, None if days is None else days * DAY_S)[1])


@group.command("list")
def list_tokens(json_output: JsonOption = False) -> None:
    """List the tokens; their secrets are not kept."""
    import datetime

    from invigilator.guard.api.tokens import TokenFile
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.home import Home

    found = TokenFile(Home.locate().tokens).all()
    rows = []
    for token in found:
        ends = token.expires_at and datetime.datetime.fromtimestamp(token.expires_at, datetime.UTC)
        rows.append((token.id, token.name, token.role, ends.isoformat(timespec="seconds") if ends else None))
    if json_output:
        print_json([dict(zip(("id", "name", "role", "expires_at"), row, strict=True)) for row in rows])
    else:
        print_table(("token", "name", "role", "ends"), rows)


@group.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as `list` shows it.")],
) -> None:
    """Take a token out; it is refused from the next request on."""
    from invigilator.guard.api.tokens import TokenFile
    from invigilator.guard.cli.output import plain
    from invigilator.guard.home import Home

    gone = TokenFile(Home.locate().tokens).revoke(token_id)
    print(f"revoked: {plain(gone.name)} ({gone.role})")
