"""`guard export`: the record into a file."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from invigilator.guard.cli.server import ServerOption, client
from invigilator.guard.cli.sql import pairs_of

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Subject(StrEnum):
    """What is exported."""

    events = "events"
    incidents = "incidents"
    rollouts = "rollouts"


class Format(StrEnum):
    """Forms of the file."""

    parquet = "parquet"
    jsonl = "jsonl"
    ocsf = "ocsf"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export)


def export(
    subject: Annotated[Subject, typer.Argument(help="What to export.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to; it appears whole.")
    ],
    form: Annotated[Format, typer.Option("--format", help="Form of the file.")] = Format.parquet,
    run: Annotated[str, typer.Option("--run", metavar="ID", help="Of one run.")] = "",
    rollout: Annotated[str, typer.Option("--rollout", metavar="ID", help="Of one rollout.")] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="K=V", help="Of rollouts with it; repeatable.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="From then: ISO 8601 (UTC), or 90m, 12h, 7d ago."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before then.")] = None,
    kind: Annotated[list[str] | None, typer.Option("--kind", metavar="KIND", help="Repeatable.")] = None,
    outcome: Annotated[
        str, typer.Option("--outcome", metavar="NAME", help="Of incidents: denied, failed, success.")
    ] = "",
    server: ServerOption = None,
) -> None:
    """Write events, incidents or rollouts to a file: Parquet, JSON Lines, or OCSF 1.8.0 (JSON Lines).

    What is exported teaches evasion: the service keeps who took what, and the role needs the right to export.

    \b
    Examples:
      guard export incidents --since 7d --format ocsf -o incidents.jsonl
      guard export events --run run-7 --label checkpoint=120 -o events.parquet
    """
    from invigilator.guard.export import export as write

    with client(server) as record:
        pieces = record.exported(
            subject.value,
            run_id=run,
            rollout_id=rollout,
            labels=pairs_of(label, "--label"),
            since=moment(since),
            until=moment(until),
            kinds=kind or (),
            outcome=outcome,
        )
        done = write(pieces, subject.value, form.value, output, progress)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    left = (
        f"; {done.left_out} events of kinds that OCSF has no class for are left out" if done.left_out else ""
    )
    print(f"{done.rows} {subject.value} in {output}{left}", file=sys.stderr)


def progress(rows: int) -> None:
    """How far it is, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{rows} rows", end="", file=sys.stderr, flush=True)


def moment(text: str | None) -> datetime | None:
    """A time: ISO 8601, or how long ago."""
    if text is None:
        return None
    try:
        if text[-1:] in UNITS and text[:-1].isdigit():
            return datetime.now(UTC) - timedelta(**{UNITS[text[-1]]: int(text[:-1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is neither ISO 8601 nor like 90m, 12h, 7d") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
