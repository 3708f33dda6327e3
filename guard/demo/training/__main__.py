"""`python -m invigilator.guard.demo.training`: learn with the penalty and without it; curves and figures."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from invigilator.guard.demo.training import loop, picture
from invigilator.guard.demo.training.actions import ACTIONS
from invigilator.guard.errors import GuardError
from invigilator.guard.evaluation.homes import end_daemons
from invigilator.guard.home import Home
from invigilator.guard.node import require_root


def main(words: Sequence[str] | None = None) -> int:
    """Run it; the exit status: 0, or that of the error that is printed."""
    usual = loop.Size()
    parser = argparse.ArgumentParser(
        prog="python -m invigilator.guard.demo.training",
        description="Train a small agent in guarded sandboxes, with the penalty and without it.",
    )
    parser.add_argument("--seeds", type=int, default=usual.seeds, help=f"how often (default {usual.seeds})")
    parser.add_argument(
        "--steps", type=int, default=usual.steps, help=f"steps of each (default {usual.steps})"
    )
    parser.add_argument(
        "--group", type=int, default=usual.group, help=f"rollouts a step (default {usual.group})"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep training.svg and training.json there")
    given = parser.parse_args(words)
    if min(given.seeds, given.steps, given.group) < 1:
        parser.error("seeds, steps and group are at least 1")
    try:
        require_root("the training loop")
        run(loop.Size(given.seeds, given.steps, given.group), given.out)
    except GuardError as error:
        print(f"guard: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def run(size: loop.Size, out: Path | None) -> list[loop.Step]:
    """Train, print, and keep the picture."""
    home, began = Home.locate().make(), time.monotonic()
    run_id = f"training-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    try:
        with tempfile.TemporaryDirectory(prefix="invigilator-training-") as folder:
            steps = asyncio.run(loop.run(home.root, Path(folder), run_id, size, _tell))
    finally:
        end_daemons(home)
    for guarded in (True, False):
        mine = [one for one in steps if one.guarded is guarded]
        ends = [one.cheating for one in mine if one.step == size.steps - 1]
        begins = [one.cheating for one in mine if one.step == 0]
        print(f"{picture.NAMES[guarded]:>16}: cheats {_mean(begins):.0%} → {_mean(ends):.0%}")
    print(f"{len(steps) * size.group} rollouts in {time.monotonic() - began:.0f} s, run {run_id}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "training.svg").write_text(picture.svg(steps))
        (out / "training.json").write_text(json.dumps(loop.document(steps, size), indent=1) + "\n")
    return steps


def _tell(step: loop.Step) -> None:
    likely = max(range(len(ACTIONS)), key=lambda place: step.probabilities[place])
    print(
        f"seed {step.seed} {picture.NAMES[step.guarded]:>16}, step {step.step:2}: "
        f"cheats {step.cheating:4.0%}, "
        f"reward {step.reward:.2f}, penalty {step.penalty:+.2f}, likeliest: {ACTIONS[likely].name}",
        flush=True,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


if __name__ == "__main__":
    sys.exit(main())
