"""`python -m invigilator.guard.demo`: six agents, six sandboxes, one table.

State lies below $INVIGILATOR_HOME; nothing is left anywhere else. With `--end`, no service stays behind for
the page.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from invigilator.guard.demo import network, page, plan, play, table
from invigilator.guard.errors import GuardError
from invigilator.guard.evaluation.homes import end_daemons
from invigilator.guard.home import Home
from invigilator.guard.node import require_root


def main() -> int:
    """Run the demo; the exit status: 0, or that of the error that is printed."""
    parser = argparse.ArgumentParser(prog="python -m invigilator.guard.demo")
    parser.add_argument("--end", action="store_true", help="leave no service running at the end")
    arguments = parser.parse_args()
    console = Console()
    try:
        run(console, end=arguments.end)
    except GuardError as error:
        print(f"guard: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def run(console: Console, *, end: bool) -> list[play.Played]:
    """Play every agent of the plan, and print what came of it."""
    require_root("the demo")
    home = Home.locate().make()
    end_daemons(home)
    shown = page.open_page(home)
    try:
        with tempfile.TemporaryDirectory(prefix="invigilator-demo-") as folder, network.private_network():
            played = asyncio.run(_play_all(home, Path(folder), console))
    except BaseException:
        end_daemons(home)
        raise
    table.show(played, console)
    table.farewell(played, _guard(), home.root, None if end else shown, console)
    if end:
        end_daemons(home)
    return played


async def _play_all(home: Home, folder: Path, console: Console) -> list[play.Played]:
    script = plan.load()
    run_id = f"demo-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    played = []
    for agent in script.agents:
        console.print(f"[bold]{agent.name:<14}[/] {agent.story} …", end="", highlight=False)
        one = await play.play(script, agent, home.root, folder, run_id)
        found = len(one.report.incidents)
        console.print(
            f" {one.seconds:.1f} s, {one.report.events.produced} events, "
            f"{found} incident{'' if found == 1 else 's'}",
            highlight=False,
        )
        played.append(one)
    return played


def _guard() -> str:
    beside = Path(sys.executable).with_name("guard")
    return str(beside) if beside.exists() else "guard"


if __name__ == "__main__":
    sys.exit(main())
