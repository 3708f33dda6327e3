"""Cases of the suite as `detectors.evaluate` takes them, which defines every measure."""

from __future__ import annotations

from collections.abc import Sequence

from invigilator.detectors.evaluate import LabelledCase, evaluate
from invigilator.guard.evaluation.report import CaseResult, KindScore
from invigilator.guard.evaluation.suite import Case, Expectation
from invigilator.incidents.records import Incident


def labelled(case: Case, expected: Sequence[Expectation], found: Sequence[Incident]) -> LabelledCase:
    """A case with what it is to show this time, and what was found in it."""
    outcomes: dict[str, frozenset[str]] = {}
    for one in expected:
        outcomes[one.kind] = outcomes.get(one.kind, frozenset()).union(one.outcome)
    allowed = frozenset(case.allow).union(one.kind for one in case.expect_if_lost)
    return LabelledCase(case.name, outcomes, found, allowed)


def score_kinds(results: Sequence[CaseResult], min_confidence: float, *, honest: bool) -> list[KindScore]:
    """One score for every kind that was expected or would have counted, by name."""
    ran = [r for r in results if r.state not in ("broken", "skipped", "held")]
    cases = [
        LabelledCase(
            name=r.name,
            expected={kind: frozenset(outcomes) for kind, outcomes in r.expected.items()},
            incidents=r.found,
            allowed=frozenset(r.allowed),
        )
        for r in ran
    ]
    bulk = honest and any(r.honest for r in ran)
    return [
        KindScore(
            kind=one.kind,
            recall=one.recall,
            counted=one.counted,
            signs=list(one.signs),
            precision=one.precision,
            alarms=one.alarms_in_honest,
            clean=bulk and one.is_clean,
        )
        for one in evaluate(cases, min_confidence).kinds.values()
    ]
