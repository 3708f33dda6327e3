"""`guard policy apply`: another policy for a rollout that runs."""

from __future__ import annotations

import typer

from invigilator.guard.cli.daemons import HomeOption
from invigilator.guard.cli.joining import live_rollouts
from invigilator.guard.cli.policy import JsonOption, PolicyArgument


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("apply")(apply)


def apply(
    policy: PolicyArgument,
    rollout: str = typer.Option(
        ...,
        "--rollout",
        metavar="ROLLOUT",
        help="Id of a rollout that runs here, or its sandbox's UUID.",
        show_default=False,
        autocompletion=live_rollouts,
    ),
    home: HomeOption = None,
    json_output: JsonOption = False,
) -> None:
    """Put another policy in force on a rollout that runs, and say what became of each tier.

    AppArmor's rules, the network's and the limits change between two calls or packets. A process keeps its
    seccomp filter as long as it lives: other calls are refused to new commands only. The verdict stays by the
    policy that the rollout began with; where the network's rules change, that class is not whole any more,
    and the report says so. Other sandboxes of the policy keep it. Needs root, as does the agent.

    \b
    Example:
      guard policy apply ./tighter.yaml --rollout r1
    """
    import asyncio

    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.home import Home
    from invigilator.guard.joined import Joined
    from invigilator.incidents.records import PolicyChange
    from invigilator.profiles import library

    rules = library.load(policy)

    async def change() -> PolicyChange:
        async with Joined(rollout, Home.locate(home)) as box:
            return await box.change_policy(rules)

    changed = asyncio.run(change())
    if json_output:
        print_json({"rollout_id": rollout, "change": changed.model_dump(mode="json")})
        return
    print_table(("tier", "what became of it"), sorted(changed.tiers.items()))
