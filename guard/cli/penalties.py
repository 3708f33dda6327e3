"""`guard penalties`: what rollouts cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.server import JsonOption, LimitOption, ServerOption, chosen, client, each_named

if TYPE_CHECKING:
    from invigilator.guard.client import RolloutPenalty

PATIENCE_S = 15.0
WAIT_MOST_S = 7 * 86_400.0
COLUMNS = ("rollout", "run", "attempt", "status", "penalty", "drop", "because")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("penalties")(penalties)


def penalties(
    rollouts: Annotated[
        list[str] | None, typer.Argument(metavar="ROLLOUT", help="Default: the latest.", callback=each_named)
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=WAIT_MOST_S, help="Wait so long.")
    ] = 0.0,
    penalty_version: Annotated[
        str | None,
        typer.Option(metavar="SHA256", help="Computed by the penalty part of this version."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="As the answer was then (RFC 3339, with its offset).")
    ] = None,
    limit: LimitOption = 100,
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """List what rollouts cost, with every part of the sum. `unknown` is not 0: such a rollout is dropped.

    \b
    Examples:
      guard penalties --run job-7
      guard penalties r1 r2 --wait 60 --json
      guard penalties r1 --as-of 2026-11-30T12:00:00Z
    """
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.client import PenaltyClient, pins
    from invigilator.guard.errors import GuardError

    try:
        pins(penalty_version, as_of)
    except ValueError as error:
        raise GuardError(str(error), where="--as-of") from error
    found: list[RolloutPenalty] = []
    for run, wanted in batches(rollouts, run_id, limit, server):
        with PenaltyClient(server) as service:
            found += service.batch(
                wanted,
                run_id=run,
                wait_for="final" if wait else "nothing",
                timeout_s=max(wait, PATIENCE_S),
                on_unavailable="none",
                max_unknown=None,
                penalty_version=penalty_version,
                as_of=as_of,
            )
    if json_output:
        print_json([one.model_dump(mode="json") for one in found])
        return
    rows = [
        (
            one.rollout_id,
            one.run_id,
            one.attempt,
            one.status,
            "unknown" if one.value is None else f"{one.value:.4g}" + (" or less" if one.bound else ""),
            "drop" if one.drop else None,
            because(one),
        )
        for one in found
    ]
    print_table(COLUMNS, rows)


def because(one: RolloutPenalty) -> str:
    """Why a penalty is what it is."""
    if one.status == "unavailable":
        return "no verdict: it still runs, or no rollout is called so"
    if one.failure or one.reasons:
        return one.failure or "; ".join(reason.text for reason in one.reasons)
    return "the evidence is incomplete" if one.value is None else ""


def batches(
    rollouts: list[str] | None, run_id: str | None, limit: int, server: str | None
) -> Sequence[tuple[str | None, list[str]]]:
    """The rollouts to ask for, by run: those named, else the latest."""
    with client(server) as record:
        record.health()
        if rollouts:
            return [(run_id, rollouts)]
        rows = record.listed("rollouts", limit, **chosen(run_id=run_id))
    runs: dict[str, list[str]] = {}
    for row in rows:
        runs.setdefault(row["run_id"], []).append(row["rollout_id"])
    return list(runs.items())
