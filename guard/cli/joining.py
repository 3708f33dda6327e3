"""`guard phase` and `guard exec`: a second hand in a rollout that runs."""

from __future__ import annotations

import enum
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from invigilator.guard.cli.daemons import HomeOption
from invigilator.guard.cli.server import JsonOption
from invigilator.guard.errors import GuardError

FAILED_CODE = 125
INTERRUPTED_CODE = 130


class PhaseWord(enum.StrEnum):
    """Phases that can be begun, in their order."""

    SETUP = "setup"
    AGENT = "agent"
    VERIFY = "verify"


class ActorWord(enum.StrEnum):
    """Whose a command is."""

    AGENT = "agent"
    PLATFORM = "platform"


def live_rollouts(incomplete: str) -> list[str]:
    """Ids of rollouts that run here and begin with what was typed; none where they may not be seen."""
    import json

    from invigilator.guard.home import Home

    found = set()
    for mark in Home.locate().rollouts.glob("*.json"):
        try:
            found.add(str(json.loads(mark.read_bytes())["order"]["rollout_id"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(one for one in found if one.startswith(incomplete))


RolloutArgument = Annotated[
    str,
    typer.Argument(
        metavar="ROLLOUT",
        help="Id of a rollout that runs here, or its sandbox's UUID.",
        show_default=False,
        autocompletion=live_rollouts,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("phase")(phase)
    app.command(
        "exec",
        epilog="Exit status: the command's own; 124 timed out; 125 guard failed, or the rollout ended first; "
        "126, 127 as a shell.",
    )(execute)


def phase(
    rollout: RolloutArgument,
    name: Annotated[PhaseWord, typer.Argument(metavar="PHASE", help="setup, agent or verify.")],
    home: HomeOption = None,
    json_output: JsonOption = False,
) -> None:
    """Begin the next phase of a rollout that runs.

    Phases go setup, agent, verify, and never back. Processes of the agent's are ended when verify begins,
    unless the policy keeps survivors; of a rollout that was attached to, nothing is ended, and the phase is
    only declared. Needs root, as does the agent.

    \b
    Example:
      guard phase r1 verify
    """
    import asyncio

    from invigilator.guard.cli.output import plain, print_json
    from invigilator.guard.home import Home
    from invigilator.guard.joined import Joined

    async def begin() -> None:
        async with Joined(rollout, Home.locate(home)) as box:
            await box.phase(name.value)

    asyncio.run(begin())
    if json_output:
        print_json({"rollout_id": rollout, "phase": name.value})
    else:
        print(f"{plain(rollout)}: phase {name.value}")


def execute(
    rollout: RolloutArgument,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD", help="The command.", show_default=False)],
    actor: Annotated[
        ActorWord | None,
        typer.Option(
            "--as",
            metavar="ACTOR",
            help="Whose command it is: agent or platform. The platform's sees what is denied to the agent.",
            show_default="agent in phase agent, else platform",
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The tool call that it is; events and incidents carry it."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="End the command after S seconds.")
    ] = None,
    cwd: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder in the sandbox.", show_default="the workspace")
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Repeatable.")] = None,
    tty: Annotated[
        bool | None,
        typer.Option("--tty/--no-tty", help="Give a terminal.", show_default="as stdin and stdout"),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Run one more command in a rollout that runs, in its present phase.

    Streams, signals, terminal and exit status are the command's, as with `guard run`. What it does is in the
    rollout's record, with its actor and step. Who began the rollout still ends it, and that ends the command.
    In a container that `guard attach` watches `docker exec` runs it. Needs root, as does the agent.

    \b
    Examples:
      guard exec r1 --as platform -- cat /workspace/notes.txt
      guard exec r1 --as agent --step call-7 -- pytest -q
    """
    from invigilator.guard.cli.failures import explain

    try:
        code = _execute(rollout, command, actor, step, timeout, cwd, env, tty, home)
    except KeyboardInterrupt:
        code = INTERRUPTED_CODE
    except Exception as error:
        explain(error)
        code = FAILED_CODE
    raise typer.Exit(code)


def _execute(
    rollout: str,
    command: list[str],
    actor: ActorWord | None,
    step: str | None,
    timeout: float | None,
    cwd: str | None,
    env: list[str] | None,
    tty: bool | None,
    home: Path | None,
) -> int:
    import asyncio

    from invigilator.guard import elsewhere
    from invigilator.guard.attending import Attended, order_on_streams
    from invigilator.guard.cli.options import pairs, seconds
    from invigilator.guard.home import Home
    from invigilator.guard.joined import Joined

    if step is not None and not 0 < len(step) <= 1024:
        raise GuardError("a step's id has 1 to 1024 characters", where="--step")
    order = order_on_streams(
        command,
        actor=actor.value if actor else None,
        timeout_s=seconds(timeout, "--timeout"),
        environment=pairs(env, "--env"),
        on_terminal=os.isatty(0) and os.isatty(1) if tty is None else tty,
        step_id=step,
        cwd=cwd,
    )

    async def run() -> tuple[int, int]:
        async with Joined(rollout, Home.locate(home)) as box:
            if box.attached:
                return await elsewhere.execute(box, order), 0
            attended = Attended(box)
            with attended.handlers():
                return (await attended.execute(order, (0, 1, 2))).code, attended.output_error

    code, lost = asyncio.run(run())
    if lost:
        message = f"the command's output could not be written ({os.strerror(lost)}): some is lost"
        print(f"guard: {message}", file=sys.stderr)
    return code
