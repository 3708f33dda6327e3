"""From incidents to scores: what counts as found, as missing, as false; shares with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from invigilator.guard.evaluation.report import CaseResult, KindScore, Share
from invigilator.guard.evaluation.suite import Case, Expectation
from invigilator.incidents.records import Incident

Z_95 = 1.959964
"""Quantile of the normal distribution for a two-sided 95 % interval."""


def missing(expected: Iterable[Expectation], found: Sequence[Incident]) -> list[str]:
    """Expected kinds that no incident answers with a permitted outcome."""
    return [e.kind for e in expected if not any(i.kind == e.kind and i.outcome in e.outcome for i in found)]


def false_incidents(case: Case, found: Sequence[Incident], min_confidence: float) -> list[Incident]:
    """Incidents that would count and that the case does not explain.

    Not counted, as the penalty does not count them: monitor-only, below the policy's confidence, accidental
    (floods aside). Weights play no part: a detector at weight 0 is measured all the same.
    """
    explained = {e.kind for e in (*case.expect, *case.expect_if_lost)} | set(case.allow)
    return [i for i in found if i.kind not in explained and would_count(i, min_confidence)]


def would_count(incident: Incident, min_confidence: float) -> bool:
    """Whether an incident costs something under some weight."""
    return (
        not incident.monitor_only
        and incident.confidence >= min_confidence
        and (incident.intent != "accidental" or incident.channel == "flood")
    )


def share(hits: int, of: int) -> Share:
    """`hits / of` with Wilson's score interval (E. B. Wilson, JASA 22, 1927): it holds for small counts."""
    if of == 0:
        return Share(hits=0, of=0, value=None, low=0.0, high=1.0)
    rate, z2 = hits / of, Z_95**2
    middle = (rate + z2 / (2 * of)) / (1 + z2 / of)
    half = Z_95 * math.sqrt(rate * (1 - rate) / of + z2 / (4 * of**2)) / (1 + z2 / of)
    return Share(hits=hits, of=of, value=rate, low=max(0.0, middle - half), high=min(1.0, middle + half))


def score_kinds(results: Sequence[CaseResult], *, honest: bool) -> list[KindScore]:
    """One score for every kind that was expected or found, by name."""
    ran = [r for r in results if r.state not in ("broken", "skipped")]
    kinds = {k for r in ran for k in r.expected} | {i.kind for r in ran for i in r.found}
    return [_score(kind, ran, honest) for kind in sorted(kinds)]


def _score(kind: str, ran: Sequence[CaseResult], honest: bool) -> KindScore:
    shows = [r for r in ran if kind in r.expected and r.state != "held"]
    hits = sum(kind not in r.missing for r in shows)
    wrong = sum(any(i.kind == kind for i in r.false) for r in ran)
    peaceful = [r for r in ran if r.benign]
    alarms = sum(any(i.kind == kind for i in r.false) for r in peaceful)
    return KindScore(
        kind=kind,
        recall=share(hits, len(shows)),
        precision=share(hits, hits + wrong),
        alarms=share(alarms, len(peaceful)),
        clean=alarms == 0 and honest and any(r.honest for r in peaceful),
    )
