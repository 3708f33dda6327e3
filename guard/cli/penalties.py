"""`guard penalties`: what rollouts cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from invigilator.guard.cli.server import (
    JsonOption,
    LimitOption,
    ServerOption,
    chosen,
    client,
    each_named,
    named_or_none,
)

if TYPE_CHECKING:
    from invigilator.guard.client import RolloutPenalty

PATIENCE_S = 15.0
WAIT_MOST_S = 7 * 86_400.0
BACKTEST_MOST = 100_000
USED = ("run", "train_step", "checkpoint", "rollouts", "answers", "handed out", "now", "callers", "last")
KINDS = ("kind", "rollouts before", "after", "changed", "mean change")
CHECKPOINTS = (
    "checkpoint",
    "rollouts",
    "changed",
    "mean change",
    "now dropped",
    "no longer",
    "newly negative",
    "groups",
    "reranked",
    "flipped",
    "mean before",
    "after",
)
COLUMNS = ("rollout", "run", "attempt", "status", "penalty", "drop", "because")


class Listing(TyperGroup):
    """A group whose first command, `list`, need not be said."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As of every group, with `list` put before what names no command."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


HELP = """What rollouts cost, who used what has changed since, and what another policy would make of them.
`guard penalties r1` is short for `guard penalties list r1`.

\b
Examples:
  guard penalties --run job-7
  guard penalties r1 r2 --wait 60 --json
  guard penalties backtest --policy my-task.yaml --since 7d
"""
group = typer.Typer(cls=Listing, help=HELP)


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group, name="penalties")


@group.command("list")
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
    `guard penalties r1` is short for `guard penalties list r1`.

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


@group.command()
def used(
    incident_id: Annotated[
        str | None,
        typer.Argument(
            metavar="INCIDENT", help="Default: all that were ever dismissed.", callback=named_or_none
        ),
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")] = None,
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """List which training steps used a penalty that says something else by now, since a review changed it.

    \b
    Examples:
      guard penalties used
      guard penalties used 3f2a91 --json
    """
    from invigilator.guard.cli.output import print_json, print_table

    with client(server) as record:
        found = record.penalties_used(incident_id or "", run_id or "")
    if json_output:
        print_json(found)
        return
    rows = [
        (
            one["run_id"],
            one["train_step"],
            one["checkpoint"],
            one["rollouts"],
            one["answers"],
            price(one["old_value"], one["old_drop"]),
            price(one["new_value"], one["new_drop"]),
            ", ".join(one["callers"]),
            one["last_at"][:19],
        )
        for one in found
    ]
    print_table(USED, rows)


@group.command()
def backtest(
    policy: Annotated[str, typer.Option("--policy", metavar="P", help="A name in the library, or a file.")],
    since: Annotated[str, typer.Option(metavar="TIME", help="7d, 12h, or RFC 3339.")] = "7d",
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")] = None,
    reward: Annotated[
        str, typer.Option(metavar="LABEL|FILE", help="A label, or a .csv or .parquet file, with the rewards.")
    ] = "reward",
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=BACKTEST_MOST, help="The latest so many.")
    ] = BACKTEST_MOST,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture (SVG) here.")] = None,
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """What a penalty policy would have done to the rewards of recorded rollouts. Detection stays as recorded.

    \b
    Examples:
      guard penalties backtest --policy my-task.yaml --since 7d --reward rewards.csv
      guard penalties backtest --policy swe-task --plot backtest.svg
    """
    from invigilator.guard.backtestplot import svg
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.errors import GuardError

    with client(server) as record:
        found = record.backtest(policy, since=since, run_id=run_id, rewards=reward, limit=limit)
    if plot is not None:
        try:
            plot.write_text(svg(found))
        except OSError as error:
            raise GuardError("the picture cannot be written", where=str(plot), fix=str(error)) from error
    if json_output:
        print_json(found.json())
        return
    print_table(KINDS, [astuple(one) for one in found.kinds])
    print()
    print_table(CHECKPOINTS, [astuple(one) for one in found.checkpoints])
    for told in found.unknown:
        print(told)


def price(value: float | None, drop: bool) -> str:
    """An answer in a word."""
    return "drop" if drop else "unknown" if value is None else f"{value:.4g}"


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
