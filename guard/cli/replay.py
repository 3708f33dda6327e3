"""`guard replay`: stored events judged again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.server import JsonOption, ServerOption, client, named

if TYPE_CHECKING:
    from invigilator.guard.rejudge import Rejudged
    from invigilator.incidents.records import Incident


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="The rollout's id.", callback=named)],
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")] = None,
    attempt: Annotated[int, typer.Option(metavar="N", min=0, help="0: the latest.")] = 0,
    sandbox: Annotated[
        str | None, typer.Option(metavar="UUID", help="Of several sandboxes, this one.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Judge by this policy instead.", show_default="the recorded one"),
    ] = None,
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """Run the detectors over a rollout's stored events and compare with what was found live.

    Exit status: 0 when the verdicts are equal byte for byte (or another policy was asked about), 1 when not.

    \b
    Examples:
      guard replay r1
      guard replay r1 --policy ./stricter.yaml
    """
    from invigilator.guard.cli.output import print_json
    from invigilator.guard.rejudge import rejudge
    from invigilator.profiles import library

    rules = library.load(policy) if policy else None
    with client(server) as record:
        found = rejudge(record, record.rollout(rollout, run_id, attempt, sandbox), rules)
    if json_output:
        print_json(
            {
                "rollout_id": found.rollout_id,
                "sandbox_id": found.sandbox_id,
                "events": found.events,
                "same": found.same,
                "incidents": [one.model_dump(mode="json") for one in found.found],
                "recorded": [one.model_dump(mode="json") for one in found.recorded],
            }
        )
    else:
        show(found)
    if rules is None and not found.same:
        raise typer.Exit(1)


def show(found: Rejudged) -> None:
    """Print what differs, or what is the same."""
    from invigilator.guard.cli.output import print_table

    rows = [("same", one) for one in found.found if one in found.recorded]
    rows += [("replay only", one) for one in found.added] + [("live only", one) for one in found.gone]
    print_table(("where", "kind", "outcome", "phase", "count", "summary"), [line(*row) for row in rows])
    verdict = "equal, byte for byte" if found.same else "different"
    print(f"{found.events} events; live and replay are {verdict}")


def line(where: str, one: Incident) -> tuple[object, ...]:
    """An incident as a line of the table."""
    return (where, one.kind, one.outcome, one.phase, one.count, one.summary)
