"""`guard eval`: the detectors against labelled scenarios, honest work, and stored corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from invigilator.guard.cli.server import JsonOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval")(evaluate)


def evaluate(
    select: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Only cases so called.")] = None,
    honest: Annotated[
        bool, typer.Option("--honest", help="Honest work in bulk too: minutes, downloads.")
    ] = False,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Sandboxes at a time.")] = 2,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for the report.")] = None,
    suite: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of a suite.", show_default="this checkout's")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Judge a stored corpus instead: no root needed.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Only list the cases.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Measure the detectors: precision and recall by kind with intervals, over real sandboxes.

    Exit status: 0 when nothing was missed and nobody wrongly accused, 1 otherwise.

    \b
    Examples:
      guard eval canary_read
      guard eval --honest --out build/eval
    """
    if corpus is not None:
        judge_corpus(corpus, json_output=json_output)
    elif listing:
        list_cases(select or [], suite, honest=honest, json_output=json_output)
    else:
        run_suite(select or [], suite, honest=honest, jobs=jobs, out=out, json_output=json_output)


def run_suite(
    select: list[str], suite: Path | None, *, honest: bool, jobs: int, out: Path | None, json_output: bool
) -> None:
    """Run the cases in real sandboxes and print the scores."""
    from rich.console import Console

    from invigilator.guard.evaluation import document, run_evaluation
    from invigilator.guard.evaluation.suite import DEFAULT_SUITE

    report = run_evaluation(select, honest, jobs, out, suite=suite or DEFAULT_SUITE, progress=not json_output)
    if json_output:
        print(report.model_dump_json(indent=2))
    else:
        document.show(report, Console(markup=False, highlight=False, emoji=False))
    if not report.passed:
        raise typer.Exit(1)


def list_cases(select: list[str], suite: Path | None, *, honest: bool, json_output: bool) -> None:
    """Print the cases that would be run."""
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.evaluation.suite import DEFAULT_SUITE, load_suite

    cases = load_suite(suite or DEFAULT_SUITE).select(select, honest=honest)
    if json_output:
        print_json(
            [
                {"name": one.name, "version": one.version, "benign": one.benign, "title": one.title}
                for one in cases
            ]
        )
        return
    rows = [(one.name, one.version, "benign" if one.benign else "misbehaviour", one.title) for one in cases]
    print_table(("case", "version", "is", "title"), rows)


def judge_corpus(folder: Path, *, json_output: bool) -> None:
    """Judge a stored corpus and print what differs from what it expects."""
    from dataclasses import asdict

    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.rejudge import check_corpus

    results = check_corpus(folder)
    if json_output:
        print_json([asdict(one) | {"passed": one.passed} for one in results])
    else:
        rows = [
            (
                one.case,
                "misbehaviour" if one.misbehaviour else "benign",
                one.events,
                "as expected" if one.passed else "not as expected",
                ", ".join(one.missing) or None,
                ", ".join(one.unexpected) or None,
            )
            for one in results
        ]
        print_table(("case", "is", "events", "verdict", "missing", "unexpected"), rows)
    if not all(one.passed for one in results):
        raise typer.Exit(1)
