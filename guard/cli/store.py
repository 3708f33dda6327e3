"""`guard store`: the store's schema, on a server and for a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

PlaceOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="INVIGILATOR_STORE",
        metavar="URL",
        help="A ClickHouse server's URL (with a password, better in the variable).",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="The store's schema: on a ClickHouse server, for a cluster.", no_args_is_help=True
    )
    group.command("schema")(schema)
    group.command("migrate")(migrate)
    app.add_typer(group, name="store")


def schema(
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="The cluster, as the servers' remote_servers names it.")
    ],
    database: Annotated[str, typer.Option(metavar="NAME", help="Its database.")] = "invigilator",
) -> None:
    """Print the schema for a ClickHouse cluster: replicated tables, Distributed tables over them, views."""
    from invigilator.guard.errors import GuardError
    from invigilator.incidents import cluster as clusters
    from invigilator.incidents.engine import StoreError

    try:
        print(clusters.script(cluster, database), end="")
    except StoreError as error:
        raise GuardError(str(error)) from error


def migrate(store: PlaceOption) -> None:
    """Bring a server's schema to this version, for agents that ship straight into it."""
    from invigilator.guard.errors import GuardError
    from invigilator.incidents.store import Store, StoreError

    if not store.startswith(("http://", "https://")):
        fix = "name a server: http(s)://user:password@host:8123/database"
        raise GuardError("an embedded store is brought up by guard serve, which holds it", fix=fix)
    try:
        opened = Store.open(store)
        try:
            done = opened.migrate()
        finally:
            opened.close()
    except StoreError as error:
        raise GuardError(str(error)) from error
    print("\n".join(done) if done else "the schema was of this version already")
