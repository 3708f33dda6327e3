"""`guard serve`, `guard agent`, `guard up`, `guard down`, `guard status`: the daemons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.server import JsonOption

if TYPE_CHECKING:
    from invigilator.guard.daemons import Done

UID_MOST = 2**32 - 2
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="State folder.",
        show_default="$INVIGILATOR_HOME, else /var/lib/invigilator",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("status")(status)
    app.command("agent")(agent)
    app.command("serve")(serve)


def up(json_output: JsonOption = False) -> None:
    """Start this node's agent and service and let them stay, until `guard down`.

    Without it every command starts what it needs, and that ends when idle.
    """
    from invigilator.guard.daemons import stay
    from invigilator.guard.home import Home

    show(stay(Home.locate()), json_output=json_output)


def down(
    force: Annotated[
        bool, typer.Option("--force", help="Even while rollouts run: they end as failed.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """End this node's agent and service. What waits in the spool stays there and is shipped later."""
    from invigilator.guard.daemons import end
    from invigilator.guard.home import Home

    show(end(Home.locate(), force=force), json_output=json_output)


def show(done: dict[str, Done], *, json_output: bool) -> None:
    """Print what was done with each daemon."""
    from dataclasses import asdict

    from invigilator.guard.cli.output import print_json

    if json_output:
        print_json({name: asdict(what) for name, what in done.items()})
        return
    for name, what in done.items():
        print(f"{name}: {what}")


def status(json_output: JsonOption = False) -> None:
    """Say whether agent and service run, what they do, and what waits. Starts nothing."""
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.daemons import examine
    from invigilator.guard.home import Home

    found = examine(Home.locate())
    if json_output:
        print_json(found)
        return
    rows = [(part, name, value) for part, facts in found.items() for name, value in facts.items()]
    print_table(("part", "what", "is"), rows)


def agent(
    home: HomeOption = None,
    idle: Annotated[
        float | None,
        typer.Option("--idle-timeout", metavar="SECONDS", min=0, help="End after so long without a rollout."),
    ] = None,
) -> None:
    """Run the node's agent in the foreground: sensor, sandboxes, detectors. Needs root."""
    import logging

    from invigilator.guard.agent import run
    from invigilator.guard.home import Home

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    run(Home.locate(home), idle)


def serve(
    home: HomeOption = None,
    store: Annotated[
        str | None,
        typer.Option(
            envvar="INVIGILATOR_STORE",
            metavar="PLACE",
            help="A folder, or a ClickHouse server's URL (with a password, better in the variable).",
            show_default="the home's store/",
        ),
    ] = None,
    uid: Annotated[
        int, typer.Option(metavar="N", min=1, max=UID_MOST, help="As root: become this user id.")
    ] = 61500,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Also listen here, with tokens; off loopback with TLS only."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="TLS: the server's certificate (PEM, with its chain).", show_default=False
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TLS: the certificate's key (PEM).", show_default=False),
    ] = None,
    insecure_plaintext: Annotated[
        bool,
        typer.Option(
            "--insecure-plaintext", help="Off loopback without TLS: who is on the way reads the tokens."
        ),
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option("--idle-timeout", metavar="SECONDS", min=0, help="End when nothing was asked so long."),
    ] = None,
    query_time: Annotated[
        float, typer.Option(min=1, max=3600, metavar="SECONDS", help="Limit of a user's query.")
    ] = 30.0,
) -> None:
    """Run the API and the pages, in the foreground. The only process that opens the store; never as root."""
    import logging

    from invigilator.guard.api.start import ServeSettings, start
    from invigilator.guard.home import Home
    from invigilator.guard.tls import server_context

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    place = Home.locate(home)
    address = parse_address(listen) if listen else None
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("a certificate and its key go together", param_hint="--tls-cert, --tls-key")
    if tls_cert and address is None:
        raise typer.BadParameter("TLS is for --listen; the Unix socket has none", param_hint="--tls-cert")
    # Read as the user who starts it: the key is nothing that serve itself can open.
    tls = server_context(tls_cert, tls_key) if tls_cert and tls_key else None
    where = store or str(place.store)
    start(ServeSettings(place, where, uid, address, idle, query_time, tls, insecure_plaintext))


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` as a pair; [::1]:PORT for IPv6."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT", param_hint="--listen")
    return host.strip("[]"), int(port)
