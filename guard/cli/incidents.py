"""`guard incidents …`: what was found, the evidence, and people's decisions."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from invigilator.guard.cli.help import Ordered
from invigilator.guard.cli.server import JsonOption, LimitOption, ServerOption, chosen, client, named

group = typer.Typer(
    cls=Ordered,
    name="incidents",
    help="List, show and review incidents.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
COLUMNS = (
    "incident",
    "kind",
    "severity",
    "outcome",
    "count",
    "rollout",
    "phase",
    "step",
    "review",
    "summary",
)

BRIEF = ("incident", "kind", "severity", "outcome", "count", "rollout", "summary")
"""What fits a terminal."""
SHOWN_ID = 12


class Severity(StrEnum):
    """Severities."""

    info = "info"
    low = "low"
    medium = "medium"
    high = "high"
    critical = "critical"


class Outcome(StrEnum):
    """Outcomes."""

    denied = "denied"
    failed = "failed"
    success = "success"


class Decision(StrEnum):
    """What a person decides."""

    confirm = "confirm"
    dismiss = "dismiss"
    comment = "comment"


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group)


@group.command("list")
def list_incidents(
    rollout: Annotated[str | None, typer.Option(metavar="ID", help="Of this rollout.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Of this kind.")] = None,
    severity: Annotated[
        Severity | None, typer.Option(metavar="LEVEL", help="info, low, medium, high, critical.")
    ] = None,
    outcome: Annotated[Outcome | None, typer.Option(metavar="HOW", help="denied, failed, success.")] = None,
    review: Annotated[
        str | None, typer.Option(metavar="DECISION", help="confirm, dismiss, or none: not decided yet.")
    ] = None,
    limit: LimitOption = 100,
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """List incidents, the latest first.

    \b
    Examples:
      guard incidents list --kind canary_read --outcome success
      guard incidents list --rollout r1 --json
    """
    from invigilator.guard.cli.output import print_json, print_table

    filters = chosen(
        rollout_id=rollout,
        run_id=run_id,
        kind=kind,
        severity=severity and severity.value,
        outcome=outcome and outcome.value,
        review=review,
    )
    with client(server) as record:
        found = record.listed("incidents", limit, **filters)
    if kind is not None and not found:
        require_kind(kind)
    if json_output:
        print_json(found)
        return
    print_table(COLUMNS, [line(row) for row in found], brief=BRIEF)


def require_kind(kind: str) -> None:
    """An empty answer must not hide a misspelt kind; one that the store knows is of no interest here."""
    from invigilator.profiles.kinds import kinds
    from invigilator.profiles.validate import suggest

    if kind not in kinds():
        meant = suggest(kind, kinds())
        fix = f"write {meant}" if meant else "docs/detectors.md names those that are there"
        raise typer.BadParameter(
            f"nothing was found, and no detector is called {kind!r}; {fix}", param_hint="--kind"
        )


def line(row: dict[str, Any]) -> tuple[object, ...]:
    """An incident as a line of the table."""
    monitored = " (monitor only)" if row["monitor_only"] else ""
    return (
        row["id"][:SHOWN_ID] if sys.stdout.isatty() else row["id"],
        row["kind"] + monitored,
        row["severity"],
        row["outcome"],
        row["count"],
        row["rollout_id"],
        row["phase"],
        row["step_id"] or None,
        row["review"] or None,
        row["summary"],
    )


@group.command()
def show(
    incident_id: Annotated[
        str, typer.Argument(metavar="INCIDENT", help="Its id, or the first digits of it.", callback=named)
    ],
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show one incident with its evidence and what people said of it."""
    import json

    from invigilator.guard.cli.output import plain, print_json

    with client(server) as record:
        found = record.incident(incident_id)
    if json_output:
        print_json(found)
        return
    evidence, reviews = found.pop("evidence"), found.pop("reviews")
    width = max(len(name) for name in found)
    for name, value in found.items():
        print(f"{name:<{width}}  {plain(value)}")
    print(f"\nevidence, {len(evidence)} of {found['count']}:")
    for fact in evidence:
        print(f"  {plain(json.dumps(fact, ensure_ascii=False))}")
    for one in reviews:
        said = f"{one['reviewed_at'][:19]} {one['reviewer']}: {one['decision']} {one['comment']}"
        print(f"review {plain(said)}")


@group.command()
def review(
    incident_id: Annotated[
        str, typer.Argument(metavar="INCIDENT", help="Its id, or the first digits of it.", callback=named)
    ],
    decision: Annotated[Decision, typer.Argument(help="confirm, dismiss or comment.")],
    comment: Annotated[str, typer.Option("--comment", "-m", metavar="TEXT", help="Why.")] = "",
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """Confirm or dismiss an incident, or comment on it. All reviews are kept; the latest decision holds.

    \b
    Example:
      guard incidents review 3f2a… dismiss -m "the task's own build did it"
    """
    import getpass

    from invigilator.guard.cli.output import plain, print_json

    with client(server) as record:
        made = record.review(incident_id, decision.value, comment, getpass.getuser())
    if json_output:
        print_json(made)
    else:
        print(plain(f"{made['decision']} by {made['reviewer']}: incident {made['incident_id']}"))
