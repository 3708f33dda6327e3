"""`guard token …`: who may ask the service over TCP."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.help import Ordered
from invigilator.guard.cli.server import JsonOption, named

if TYPE_CHECKING:
    from invigilator.guard.api.tokens import Token

DAY_S = 86_400.0
DAYS_MOST = 36_500
FACTS = ("id", "name", "role", "expires_at")
group = typer.Typer(
    cls=Ordered,
    name="token",
    help="Make, list and revoke access tokens.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Role(StrEnum):
    """Roles, from the least to the most."""

    node = "node"
    scraper = "scraper"
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
        Role,
        typer.Option(
            metavar="ROLE",
            help="node: ships; trainer: penalties; engineer: SQL too; researcher: and reviews; admin: all.",
        ),
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="Whose it is.", callback=named)],
    days: Annotated[
        float | None,
        typer.Option(
            metavar="N", min=0, max=DAYS_MOST, help="Ends after so many days.", show_default="never"
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Make a token and print it, this once: only its hash is kept.

    \b
    Example:
      guard token create --role trainer --name grpo-job --days 7
    """
    from invigilator.guard.api.tokens import TokenFile
    from invigilator.guard.cli.output import print_json
    from invigilator.guard.home import Home

    home = Home.locate().make()
    ttl_s = None if days is None else days * DAY_S
    token, text = TokenFile(home.tokens).create(name, role.value, ttl_s)
    if json_output:
        print_json({**dict(zip(FACTS, facts(token), strict=True)), "token": text})
    else:
        print(text)


@group.command("list")
def list_tokens(json_output: JsonOption = False) -> None:
    """List the tokens; their secrets are not kept."""
    from invigilator.guard.api.tokens import TokenFile
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.home import Home

    rows = [facts(token) for token in TokenFile(Home.locate().tokens).all()]
    if json_output:
        print_json([dict(zip(FACTS, row, strict=True)) for row in rows])
    else:
        print_table(("token", "name", "role", "ends"), rows)


def facts(token: Token) -> tuple[str | None, ...]:
    """What may be shown of a token; in the order of `FACTS`."""
    import datetime

    ends = (
        None if token.expires_at is None else datetime.datetime.fromtimestamp(token.expires_at, datetime.UTC)
    )
    return token.id, token.name, token.role, ends.isoformat(timespec="seconds") if ends else None


@group.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as `list` shows it.")],
    json_output: JsonOption = False,
) -> None:
    """Take a token out; it is refused from the next request on."""
    from invigilator.guard.api.tokens import TokenFile
    from invigilator.guard.cli.output import plain, print_json
    from invigilator.guard.home import Home

    gone = TokenFile(Home.locate().tokens).revoke(token_id)
    if json_output:
        print_json(dict(zip(FACTS, facts(gone), strict=True)))
    else:
        print(f"revoked: {plain(gone.name)} ({gone.role})")
