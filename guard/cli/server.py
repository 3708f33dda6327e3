"""How commands reach the service, and the options for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from invigilator.guard.research import Invigilator

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="A guard serve on TCP; its token comes from $INVIGILATOR_TOKEN.",
        show_default="$INVIGILATOR_SERVE_URL, else this machine's own",
    ),
]
LIMIT_MOST = 1_000_000
"""Further than that the service's lists do not go; SQL does."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LimitOption = Annotated[int, typer.Option(metavar="N", min=1, max=LIMIT_MOST, help="At most so many rows.")]


def named(text: str) -> str:
    """A name or id that was given on the command line; not an empty one."""
    if not text.strip():
        raise typer.BadParameter("it is empty")
    return text


def named_or_none(text: str | None) -> str | None:
    """As `named`, of what need not be given."""
    return None if text is None else named(text)


def each_named(texts: list[str] | None) -> list[str] | None:
    """As `named`, of several."""
    return texts and [named(text) for text in texts]


def client(server: str | None) -> Invigilator:
    """A client that answers with plain dicts."""
    from invigilator.guard.research import Invigilator

    return Invigilator(server, frames=False)


def chosen(**filters: str | None) -> dict[str, Any]:
    """The filters that were given."""
    return {name: value for name, value in filters.items() if value}
