"""The evaluation: cases side by side in real sandboxes, then scores, then files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from invigilator.guard.errors import NotFoundError
from invigilator.guard.evaluation import document, score
from invigilator.guard.evaluation.case import run_case
from invigilator.guard.evaluation.homes import Homes
from invigilator.guard.evaluation.report import CaseResult, EvaluationReport
from invigilator.guard.evaluation.suite import DEFAULT_SUITE, Case, Suite, load_suite
from invigilator.guard.node import require_root
from invigilator.guard.release import version
from invigilator.profiles.policy import PenaltyRules

MIN_CONFIDENCE = PenaltyRules().min_confidence
"""The language's default, which the suite's policy keeps."""
OnResult = Callable[[CaseResult], None]


def run_evaluation(
    select: Sequence[str] = (),
    honest: bool = False,
    jobs: int = 2,
    out: Path | None = None,
    *,
    suite: Path = DEFAULT_SUITE,
    cache: Path | None = None,
    progress: bool = True,
) -> EvaluationReport:
    """Run the suite's cases whose name holds one of `select` (all without any), `jobs` at a time.

    With `honest`, the honest work in bulk is run too (minutes; it downloads what it needs into `cache`). With
    `out`, the folder gets `evaluation.json`, `evaluation.md` and `evaluation.txt`. State is kept in folders
    of the evaluation's own, removed at the end. Needs root. `SuiteError` for a suite that is wrong,
    `NotFoundError` where nothing is selected.
    """
    require_root("an evaluation runs real sandboxes: it")
    loaded = load_suite(suite)
    cases = loaded.select(select, honest=honest)
    if not cases:
        raise NotFoundError(
            f"no case is called {', '.join(select)}", where=str(suite), fix="see `guard eval --list`"
        )
    began, started_at = time.monotonic(), datetime.now(UTC)
    with _progress(len(cases), progress) as seen:
        results = asyncio.run(_run_all(loaded, cases, jobs, cache or default_cache(), seen))
    report = EvaluationReport(
        suite_version=loaded.version,
        release=version(),
        machine=f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs",
        started_at=started_at,
        seconds=round(time.monotonic() - began, 1),
        honest=honest,
        cases=results,
        kinds=score.score_kinds(results, MIN_CONFIDENCE, honest=honest),
    )
    if out is not None:
        document.write(report, out)
    return report


def default_cache() -> Path:
    """Where downloads are kept between evaluations."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "invigilator" / "evaluation"


async def _run_all(
    suite: Suite, cases: Sequence[Case], jobs: int, cache: Path, seen: OnResult
) -> list[CaseResult]:
    turns = asyncio.Semaphore(max(1, jobs))
    with tempfile.TemporaryDirectory(prefix="invigilator-eval-") as scratch, Homes(Path(scratch)) as homes:

        async def one(number: int, case: Case) -> CaseResult:
            async with turns:
                home = await asyncio.to_thread(homes.of, case)
                result = await run_case(suite, case, home, Path(scratch) / f"case-{number}", cache)
                seen(result)
                return result

        return list(await asyncio.gather(*(one(n, case) for n, case in enumerate(cases))))


@contextlib.contextmanager
def _progress(total: int, shown: bool) -> Iterator[OnResult]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task("cases", total=total)

        def seen(result: CaseResult) -> None:
            if result.state in ("miss", "false_alarm", "broken") or result.false:
                bar.console.print(document.one_line(result), highlight=False, markup=False)
            bar.update(task, advance=1, description=result.name[:50])

        yield seen
