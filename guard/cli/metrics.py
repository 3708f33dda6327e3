"""`guard metrics`: this node's agent and service, as Prometheus reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("metrics")(metrics)


def metrics(
    textfile: Annotated[
        Path | None,
        typer.Option(
            "--textfile",
            metavar="FILE.prom",
            help="Write them here, whole or not at all: for the textfile collector of the node exporter.",
        ),
    ] = None,
) -> None:
    """Print metrics of this node's agent and service, in Prometheus's text format. Starts nothing.

    The service also answers `GET /v1/metrics` (a token of role `scraper`). The agent listens on no network: a
    timer that runs `guard metrics --textfile` is how its own are scraped.
    """
    from invigilator.guard.home import Home, write_atomically
    from invigilator.guard.nodemetrics import collect

    text = collect(Home.locate())
    if textfile is None:
        print(text, end="")
        return
    write_atomically(textfile, text.encode(), 0o644)
