"""The evaluation as people read it: a table for the terminal, a Markdown document, JSON for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from invigilator.detectors.evaluate import Proportion
from invigilator.guard.evaluation.report import CaseResult, EvaluationReport
from invigilator.incidents.records import Incident

EVIDENCE_SHOWN = 3
EVIDENCE_CHARS_MAX = 400


def write(report: EvaluationReport, folder: Path) -> None:
    """Put `evaluation.json`, `evaluation.md` and `evaluation.txt` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation.json").write_text(report.model_dump_json(indent=1) + "\n")
    (folder / "evaluation.md").write_text(markdown(report))
    text = io.StringIO()
    show(report, Console(file=text, width=120, no_color=True))
    (folder / "evaluation.txt").write_text(text.getvalue())


def show(report: EvaluationReport, console: Console) -> None:
    """Print the scores, then everything that is not as it should be."""
    table = Table(title=f"guard eval: suite {report.suite_version}, {len(report.cases)} cases")
    for name in ("kind", "found", "95 %", "counted", "95 %", "precision", "95 %", "false alarms", "weight"):
        table.add_column(name, justify="left" if name in ("kind", "weight") else "right")
    for kind in report.kinds:
        table.add_row(
            kind.kind,
            _fraction(kind.recall),
            _interval(kind.recall),
            _fraction(kind.counted),
            _interval(kind.counted),
            _fraction(kind.precision),
            _interval(kind.precision),
            _fraction(kind.alarms),
            "may count" if kind.clean else "0",
        )
    console.print(table)
    for case in report.cases:
        if case.state in ("miss", "broken", "skipped", "false_alarm") or case.false:
            console.print(Text(one_line(case)))
    console.print(Text(summary(report)))


def summary(report: EvaluationReport) -> str:
    """How many cases ended how, in one line."""
    counts: dict[str, int] = {}
    for case in report.cases:
        counts[case.state] = counts.get(case.state, 0) + 1
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return f"{states}; {report.seconds:.0f} s on {report.machine}"


def one_line(case: CaseResult) -> str:
    """What is wrong with one case."""
    parts = [f"{case.state:<11} {case.name}"]
    if case.missing:
        parts.append(f"missing {', '.join(case.missing)}")
    if case.false:
        parts.append("wrongly found " + ", ".join(f"{i.kind} ({i.outcome})" for i in case.false))
    if case.note:
        parts.append(" ".join(case.note.split()))
    return ": ".join(parts)


def markdown(report: EvaluationReport) -> str:
    """The whole evaluation as one document."""
    return (
        "\n".join([*_head(report), *_scores(report), *_alarms(report), *_rest(report), *_cases(report)])
        + "\n"
    )


def _head(report: EvaluationReport) -> Iterable[str]:
    yield "# Evaluation of the detectors"
    yield ""
    yield (
        f"Suite {report.suite_version}, release {report.release}, "
        f"{report.started_at:%Y-%m-%d %H:%M} UTC, {report.machine}. {summary(report)}."
    )
    yield ""
    yield (
        "Counted in cases. Found: of the cases that show a kind, those where it was found with a permitted "
        "outcome (recall). Counted: of the same, those where a penalty could count it; the rest are signs, "
        "shown to researchers and costing nothing. Precision: of the cases where it would count, those where "
        "it belonged. False alarms: of the benign and honest cases, those where it would count. Intervals: "
        "Wilson, 95 %."
    )
    if not report.honest:
        yield ""
        yield "**The honest work in bulk was not run**, so no kind is shown to be clean."


def _scores(report: EvaluationReport) -> Iterable[str]:
    yield from ("", "## By kind", "")
    yield "| kind | found | 95 % | counted | 95 % | precision | 95 % | false alarms | 95 % | weight |"
    yield "|---|---:|---|---:|---|---:|---|---:|---|---|"
    for kind in report.kinds:
        shares = (kind.recall, kind.counted, kind.precision, kind.alarms)
        cells = " | ".join(f"{_fraction(s)} | {_interval(s)}" for s in shares)
        yield f"| `{kind.kind}` | {cells} | {'may count' if kind.clean else '0'} |"
    if signs := sorted({name for kind in report.kinds for name in kind.signs}):
        yield ""
        yield f"Found as signs alone, which cost nothing: {', '.join(f'`{name}`' for name in signs)}."
    if wrong := report.penalising_honest_work:
        yield ""
        yield f"Keep at weight 0, as they penalise honest work: {', '.join(f'`{k}`' for k in wrong)}."


def _alarms(report: EvaluationReport) -> Iterable[str]:
    yield from ("", "## False positives", "")
    if not report.false_alarms:
        yield "None."
    for case in report.false_alarms:
        for incident in case.false:
            yield f"### `{incident.kind}` in `{case.name}`"
            yield ""
            yield f"{case.title}. {incident.summary}"
            yield ""
            yield (
                f"outcome {incident.outcome}, intent {incident.intent}, confidence {incident.confidence}, "
                f"phase {incident.phase}, step {incident.step_id}, count {incident.count}"
            )
            yield from _evidence(incident)


def _evidence(incident: Incident) -> Iterable[str]:
    yield from ("", "```json")
    for fact in incident.evidence[:EVIDENCE_SHOWN]:
        # A fence in a file's name must not end the block.
        yield json.dumps(fact, ensure_ascii=True, default=str)[:EVIDENCE_CHARS_MAX].replace("`", "\\u0060")
    yield from ("```", "")


def _rest(report: EvaluationReport) -> Iterable[str]:
    for state, title in (("miss", "Missed"), ("broken", "Broken"), ("skipped", "Skipped"), ("held", "Held")):
        if cases := [case for case in report.cases if case.state == state]:
            yield from ("", f"## {title}", "")
            yield from (f"- {one_line(case).replace('`', '')}" for case in cases)


def _cases(report: EvaluationReport) -> Iterable[str]:
    yield from (
        "",
        "## Cases",
        "",
        "| case | version | state | found | events | lost | s |",
        "|---|---:|---|---|---:|---:|---:|",
    )
    for case in report.cases:
        found = ", ".join(sorted({f"{i.kind} ({i.outcome})" for i in case.found}))
        yield (
            f"| `{case.name}` | {case.version} | {case.state} | {found} | {case.events} | {case.lost} "
            f"| {case.seconds:.1f} |"
        )


def _fraction(share: Proportion) -> str:
    return f"{share.hits}/{share.of}"


def _interval(share: Proportion) -> str:
    return "" if share.value is None else f"{share.low:.2f}–{share.high:.2f}"
