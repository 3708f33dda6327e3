"""`guard token …`: who may ask the service over TCP."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.help import Ordered
from invigilator.guard.cli.server import JsonOption, each_named, named

if TYPE_CHECKING:
    from invigilator.guard.api.tokens import Token

DAY_S = 86_400.0
DAYS_MOST = 36_500
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
TTL = "90d"
FACTS = ("id", "name", "role", "expires_at", "projects")
group = typer.Typer(
    cls=Ordered,
    name="token",
    help="Make, list, rotate and revoke access tokens.",
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


def seconds(text: str) -> float:
    """A length of time: `90d`, `12h`, `30m`, `10s`."""
    import re

    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", text, re.ASCII)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no length of time such as 90d, 12h, 30m or 10s")
    length = float(found[1]) * UNITS_S[found[2]]
    if length > DAYS_MOST * DAY_S:
        raise typer.BadParameter(f"{text!r} is over {DAYS_MOST} days")
    return length


def _some(text: str) -> float:
    length = seconds(text)
    if not length:
        raise typer.BadParameter(f"{text!r}: the token would have ended already")
    return length


def lifetime(ttl: str | None, days: float | None, *, no_expiry: bool) -> float | None:
    """Seconds until a token ends, by the options given; None: it does not."""
    if (ttl is not None) + (days is not None) + no_expiry > 1:
        raise typer.BadParameter("give one of --ttl, --days and --no-expiry")
    if no_expiry:
        return None
    return days * DAY_S if days is not None else _some(TTL if ttl is None else ttl)


TtlOption = Annotated[
    str | None, typer.Option("--ttl", metavar="TIME", help="Ends after so long: 12h, 30d.", show_default=TTL)
]
NoExpiryOption = Annotated[bool, typer.Option("--no-expiry", help="Never ends. Better not.")]


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
    project: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Sees only rollouts of this project (their label `project`). Repeatable.",
            show_default="all",
            callback=each_named,
        ),
    ] = None,
    ttl: TtlOption = None,
    days: Annotated[
        float | None, typer.Option(metavar="N", min=0, max=DAYS_MOST, help="Ends after so many days.")
    ] = None,
    no_expiry: NoExpiryOption = False,
    json_output: JsonOption = False,
) -> None:
    """Make a token and print it, this once: only its hash is kept.

    \b
    Example:
      guard token create --role trainer --name grpo-job --ttl 7d --project code
    """
    from invigilator.guard.api.tokens import TokenFile
    from invigilator.guard.auditing import leave
    from invigilator.guard.cli.output import print_json
    from invigilator.guard.home import Home

    home = Home.locate().make()
    ttl_s = lifetime(ttl, days, no_expiry=no_expiry)
    token, text = TokenFile(home.tokens).create(
        name, role.value, ttl_s, project or (), tell=partial(leave, home)
    )
    if json_output:
        print_json({**dict(zip(FACTS, facts(token), strict=True)), "token": text})
    else:
        print(text)


@group.command()
def rotate(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as `list` shows it.")],
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="The old one ends after so long, 0s: at once.")
    ] = "1h",
    ttl: TtlOption = None,
    no_expiry: NoExpiryOption = False,
    json_output: JsonOption = False,
) -> None:
    """Put a new token in a token's place and print it: same name, role and projects. The old one ends soon.

    \b
    Example:
      guard token rotate 3f2a90c1d4e5 --overlap 10m
    """
    from invigilator.guard.api.tokens import TokenFile
    from invigilator.guard.auditing import leave
    from invigilator.guard.cli.output import print_json
    from invigilator.guard.home import Home

    home = Home.locate().make()
    overlap_s = seconds(overlap)
    ttl_s = lifetime(ttl, None, no_expiry=no_expiry)
    token, text = TokenFile(home.tokens).rotate(token_id, ttl_s, overlap_s, tell=partial(leave, home))
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
        print_table(("token", "name", "role", "ends", "projects"), rows)


def facts(token: Token) -> tuple[str | None, ...]:
    """What may be shown of a token; in the order of `FACTS`."""
    import datetime

    ends = (
        None if token.expires_at is None else datetime.datetime.fromtimestamp(token.expires_at, datetime.UTC)
    )
    shown = ends.isoformat(timespec="seconds") if ends else None
    return token.id, token.name, token.role, shown, " ".join(token.projects) or None


@group.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as `list` shows it.")],
    json_output: JsonOption = False,
) -> None:
    """Take a token out; it is refused from the next request on."""
    from invigilator.guard.api.tokens import TokenFile
    from invigilator.guard.auditing import leave
    from invigilator.guard.cli.output import plain, print_json
    from invigilator.guard.home import Home

    home = Home.locate().make()
    gone = TokenFile(home.tokens).revoke(token_id, tell=partial(leave, home))
    if json_output:
        print_json(dict(zip(FACTS, facts(gone), strict=True)))
    else:
        print(f"revoked: {plain(gone.name)} ({gone.role})")
