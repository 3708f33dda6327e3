"""`guard sql` and `guard queries`: read-only questions to the store."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from invigilator.guard.cli.server import JsonOption, ServerOption, client


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("sql")(sql)
    app.command("queries")(queries)


def sql(
    query: Annotated[str, typer.Argument(metavar="SELECT", help="The query; - reads it from stdin.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUE", help="For {name:Type}; repeatable."),
    ] = None,
    server: ServerOption = None,
    json_output: JsonOption = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Ask the store with SQL (ClickHouse's), read-only: at most 100,000 rows, 30 s, 64 MiB.

    Begin with the views rollouts_current, incidents_current, penalties_current, events_readable.

    \b
    Examples:
      guard sql "SELECT kind, count() FROM incidents_current GROUP BY kind"
      guard sql -p r=r1 --json \\
        "SELECT * FROM rollouts_current WHERE rollout_id = {r:String}"
    """
    body = {"query": sys.stdin.read() if query == "-" else query, "parameters": pairs(parameter)}
    show("/v1/sql", body, server, json_output=json_output, csv=csv)


def queries(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The query to run; default: list them.")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="Repeatable.")
    ] = None,
    server: ServerOption = None,
    json_output: JsonOption = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """List the ready-made queries, or run one.

    \b
    Examples:
      guard queries
      guard queries timeline -p sandbox_id=7f…
    """
    from urllib.parse import quote

    from invigilator.guard.cli.output import print_json, print_table

    if name is not None:
        path = f"/v1/queries/{quote(name, safe='')}"
        show(path, {"parameters": pairs(parameter)}, server, json_output=json_output, csv=csv)
        return
    with client(server) as record:
        found = record.queries()
    if json_output:
        print_json(found)
        return
    rows = [
        (one["name"], " ".join(part["name"] for part in one["parameters"]), one["summary"]) for one in found
    ]
    print_table(("query", "parameters", "answers"), rows)


def pairs(given: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` options as a dict."""
    found = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--param")
        found[name] = value
    return found


def pairs_of(given: list[str] | None, option: str) -> dict[str, str]:
    """`KEY=VALUE` options, whatever the key, as a dict."""
    found = {}
    for text in given or ():
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found


def show(path: str, body: dict[str, Any], server: str | None, *, json_output: bool, csv: bool) -> None:
    """Ask, and print the answer in the form asked for."""
    from invigilator.guard.cli.output import print_json, print_table, write_bytes

    if json_output and csv:
        raise typer.BadParameter("one of them, not both", param_hint="--json, --csv")
    with client(server) as record:
        if csv:
            write_bytes(record.rendered(path, body, "text/csv"))
            return
        found = json.loads(record.rendered(path, body, "application/json"))
    names = [column["name"] for column in found["columns"]]
    if json_output:
        print_json([dict(zip(names, row, strict=True)) for row in found["rows"]])
        return
    print_table(names, found["rows"])
    if sys.stdout.isatty():
        print(f"{found['row_count']} rows, {found['elapsed_s']:.3f} s")
