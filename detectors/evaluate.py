"""How good the detectors are: precision and recall by kind over labelled cases, with intervals.

expected = {"system_binary_overwrite": frozenset({"success"})}
evaluate([LabelledCase("by-rename", expected, engine.incidents()), ...]).to_json()
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from invigilator.detectors.base import STRONG
from invigilator.incidents.records import Incident

Z_95 = 1.959963984540054
"""Quantile of the normal distribution for two-sided intervals of 95 %."""


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """One run. `expected`: kind → outcomes that are right (none given: any). `allowed`: kinds that are no
    mistake where they turn up beside. Honest work expects nothing."""

    name: str
    expected: Mapping[str, frozenset[str]]
    incidents: Sequence[Incident]
    allowed: frozenset[str] = frozenset()

    def answers(self, kind: str) -> list[Incident]:
        """The incidents of an expected kind that have a right outcome."""
        outcomes = self.expected[kind]
        return [i for i in self.incidents if i.kind == kind and (not outcomes or i.outcome in outcomes)]

    def missing(self) -> list[str]:
        """Expected kinds that no incident answers with a right outcome."""
        return [kind for kind in self.expected if not self.answers(kind)]

    def counted(self, kind: str, min_confidence: float) -> bool:
        """Whether an expected kind was found by one that a penalty could count, not by a sign alone."""
        return any(could_count(i, min_confidence) for i in self.answers(kind))

    def false_alarms(self, min_confidence: float) -> list[Incident]:
        """Incidents that would count under some weight, and that the case does not explain."""
        explained = self.allowed.union(self.expected)
        return [i for i in self.incidents if i.kind not in explained and could_count(i, min_confidence)]


@dataclass(frozen=True, slots=True)
class Proportion:
    """`hits` of `of`, with the interval in which the true share lies at 95 %; `value` None where nothing was
    tried."""

    hits: int
    of: int
    value: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class KindQuality:
    """One kind. `found` and `missed`: cases that expect it; `signs`: those of `found` in which nothing of it
    would count; `false_alarms`: cases that do not expect it, in which it would count; `honest`: cases that
    expect nothing at all."""

    kind: str
    recall: Proportion
    counted: Proportion
    precision: Proportion
    alarms_in_honest: Proportion
    found: tuple[str, ...]
    signs: tuple[str, ...]
    missed: tuple[str, ...]
    false_alarms: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether it was tried on honest work and penalised none of it (rule of verdict 9)."""
        return self.alarms_in_honest.of > 0 and self.alarms_in_honest.hits == 0


@dataclass(frozen=True, slots=True)
class Quality:
    """All kinds that were expected or found, by name."""

    cases: int
    kinds: Mapping[str, KindQuality] = field(default_factory=dict)

    def to_json(self) -> str:
        """The table as JSON with sorted keys."""
        rows = {name: {**asdict(kind), "is_clean": kind.is_clean} for name, kind in self.kinds.items()}
        return json.dumps({"cases": self.cases, "kinds": rows}, sort_keys=True, indent=2)


def evaluate(cases: Iterable[LabelledCase], min_confidence: float = STRONG) -> Quality:
    """Precision and recall of every kind.

    A case is found by any incident of its kind with a right outcome, and counted by one that a penalty
    could count: not monitor-only, of a known phase, sure enough, no accident (floods aside). A false alarm is
    such an incident too, and precision is the share of counted cases among all where the kind would count.
    """
    known = list(cases)
    kinds = {kind for case in known for kind in case.expected}
    kinds |= {i.kind for case in known for i in case.incidents if could_count(i, min_confidence)}
    return Quality(len(known), {kind: _quality(kind, known, min_confidence) for kind in sorted(kinds)})


def wilson(hits: int, of: int) -> Proportion:
    """A share with Wilson's score interval (E. B. Wilson, JASA 22, 1927), which holds for small numbers."""
    if not 0 <= hits <= of:
        raise ValueError(f"{hits} hits of {of}: not a share")
    if of == 0:
        return Proportion(0, 0, None, 0.0, 1.0)
    rate, z2 = hits / of, Z_95**2
    middle = (rate + z2 / (2 * of)) / (1 + z2 / of)
    half = Z_95 / (1 + z2 / of) * math.sqrt(rate * (1 - rate) / of + z2 / (4 * of * of))
    return Proportion(hits, of, rate, max(0.0, middle - half), min(1.0, middle + half))


def could_count(incident: Incident, min_confidence: float) -> bool:
    """Whether an incident would cost something under some weight."""
    accident = incident.intent == "accidental" and incident.channel != "flood"
    sure = incident.confidence >= min_confidence and incident.phase != "unknown"
    return sure and not accident and not incident.monitor_only


def _quality(kind: str, cases: Sequence[LabelledCase], min_confidence: float) -> KindQuality:
    expecting = [case for case in cases if kind in case.expected]
    missed = tuple(case.name for case in expecting if kind in case.missing())
    found = tuple(case.name for case in expecting if kind not in case.missing())
    signs = tuple(
        case.name for case in expecting if case.answers(kind) and not case.counted(kind, min_confidence)
    )
    counted = len(found) - len(signs)
    honest = [case for case in cases if not case.expected]
    alarmed = [case for case in cases if any(i.kind == kind for i in case.false_alarms(min_confidence))]
    return KindQuality(
        kind=kind,
        recall=wilson(len(found), len(expecting)),
        counted=wilson(counted, len(expecting)),
        precision=wilson(counted, counted + len(alarmed)),
        alarms_in_honest=wilson(sum(not case.expected for case in alarmed), len(honest)),
        found=found,
        signs=signs,
        missed=missed,
        false_alarms=tuple(case.name for case in alarmed),
    )
