"""`guard units`: the node as services of systemd."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("units")(units)


def units(
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Write them there, as /etc/systemd/system.", show_default="print"
        ),
    ] = None,
) -> None:
    """Print units of systemd for this node's agent and service, or write them.

    \b
    Example:
      sudo guard units --to /etc/systemd/system
      sudo systemctl daemon-reload
      sudo systemctl enable --now invigilator-serve invigilator-agent
    """
    from invigilator.guard import deploy
    from invigilator.guard.home import Home

    home = Home.locate()
    if to is None:
        for name, text in deploy.units(home).items():
            print(f"# {name}\n{text}")
        return
    for path in deploy.write_units(to, home):
        print(path)
