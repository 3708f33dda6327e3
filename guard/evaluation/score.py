"""From incidents to scores, by the measure that `detectors.evaluate` defines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from invigilator.detectors.evaluate import LabelledCase, Proportion, could_count, evaluate
from invigilator.guard.evaluation.report import CaseResult, KindScore, Share
from invigilator.guard.evaluation.suite import Case, Expectation
from invigilator.incidents.records import Incident


def missing(expected: Iterable[Expectation], found: Sequence[Incident]) -> list[str]:
    """Expected kinds that no incident answers with a permitted outcome."""
    return [e.kind for e in expected if not any(i.kind == e.kind and i.outcome in e.outcome for i in found)]


def false_incidents(case: Case, found: Sequence[Incident], min_confidence: float) -> list[Incident]:
    """Incidents that would count under some weight, and that the case does not explain."""
    explained = {e.kind for e in (*case.expect, *case.expect_if_lost)} | set(case.allow)
    return [i for i in found if i.kind not in explained and could_count(i, min_confidence)]


def score_kinds(results: Sequence[CaseResult], min_confidence: float, *, honest: bool) -> list[KindScore]:
    """One score for every kind that was expected or would have counted, by name."""
    ran = [r for r in results if r.state not in ("broken", "skipped", "held")]
    labelled = [
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
            recall=_share(one.recall),
            precision=_share(one.precision),
            alarms=_share(one.alarms_in_honest),
            clean=bulk and one.is_clean,
        )
        for one in evaluate(labelled, min_confidence).kinds.values()
    ]


def _share(one: Proportion) -> Share:
    return Share(hits=one.hits, of=one.of, value=one.value, low=one.low, high=one.high)
