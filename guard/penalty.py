"""What a rollout's incidents cost (rules of verdict 3 to 5).

    value = −min(cap, Σ over kinds of weight × factor)

The factor of a kind is the largest of its counted incidents' outcomes: 1 for a success, `attempts` for a
denied or failed try, 1 for any try of a pattern kind. A flood costs `flood` once, whatever its weight, if
that is over 0. Unknown is not clean: where a class of events that a penalised detector needs is not whole,
and nothing is proven, `value` is None.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from invigilator.detectors.base import Detector, registry
from invigilator.incidents.records import CoverageState, Incident, Penalty, PenaltyReason, Status
from invigilator.profiles.kinds import default_weights
from invigilator.profiles.policy import Policy

DECIMALS = 6
"""Decimal places of every figure of a penalty."""

Coverage = Mapping[str, CoverageState]
_HOLED = ("degraded", "failed")


@dataclass(frozen=True, slots=True)
class _Term:
    """One kind's part of the sum before the cap."""

    kind: str
    weight: float
    factor: float
    incidents: tuple[Incident, ...]

    @property
    def cost(self) -> float:
        return round(self.weight * self.factor, DECIMALS)


def compute(
    incidents: Sequence[Incident],
    policy: Policy,
    coverage: Coverage,
    status: Status,
    *,
    dismissed: Collection[str] = (),
    revision: int = 1,
) -> Penalty:
    """The penalty of one rollout.

    `coverage`: state of each class of events. `status`: of the rollout; `failed` (infrastructure) has no
    value and is dropped. `dismissed`: ids of incidents that a review rejected. Incidents of several sandboxes
    of one rollout may be given together, with the worst coverage of them.
    """
    standing = [incident for incident in incidents if incident.id not in dismissed]
    terms = _terms(standing, policy)
    total = round(sum(term.cost for term in terms), DECIMALS)
    drop = any(_drops(incident, policy) for incident in standing)
    if status == "failed":
        return Penalty(value=None, drop=True, reasons=[_reason(t, policy) for t in terms], revision=revision)
    partial = status == "partial" or is_partial(policy, coverage)
    if partial and total <= 0:
        return Penalty(value=None, drop=True, revision=revision)
    value = _negative(min(policy.penalty.cap, total))
    return Penalty(
        value=value,
        bound=partial,
        drop=drop,
        by_step=_by_step(terms, value, total),
        reasons=[_reason(term, policy) for term in terms],
        revision=revision,
    )


def is_partial(policy: Policy, coverage: Coverage) -> bool:
    """Whether a class of events that an enabled, penalised detector needs was degraded or failed."""
    holes = {name for name, state in coverage.items() if state in _HOLED}
    return any(
        need.name.lower() in holes
        for detector in registry().values()
        if is_penalised(detector, policy)
        for need in detector.needs
    )


def is_penalised(detector: type[Detector], policy: Policy) -> bool:
    """Whether a detector's incidents can cost anything under a policy."""
    rules = policy.detectors
    silent = detector.id in rules.disabled or detector.id in rules.monitor_only
    return not silent and weight(detector.kind, policy) > 0 and _most(detector, policy) > 0


def weight(kind: str, policy: Policy) -> float:
    """What a kind weighs under a policy: its own weight, else the library's; 0 where neither knows it."""
    return max(0.0, policy.penalty.weights.get(kind, default_weights().get(kind, 0.0)))


def counts(incident: Incident, policy: Policy) -> bool:
    """Whether an incident enters the sum: sure enough, no accident (floods aside), not only watched, and in a
    known phase where its kind depends on the phase."""
    detector = registry().get(incident.detector.id)
    if incident.monitor_only or incident.detector.id in policy.detectors.monitor_only:
        return False
    if incident.confidence < policy.penalty.min_confidence:
        return False
    flood = detector is not None and detector.flood
    if incident.intent == "accidental" and not flood:
        return False
    phase_bound = detector is None or detector.phase_bound
    return not (phase_bound and incident.phase == "unknown")


def factor(incident: Incident, policy: Policy) -> float:
    """The outcome factor of one incident, from 0 to 1."""
    detector = registry().get(incident.detector.id)
    if detector is not None and detector.flood:
        return policy.penalty.flood
    if incident.outcome == "success" or (detector is not None and detector.pattern):
        return 1.0
    return policy.penalty.attempts


def marked(
    incidents: Sequence[Incident], policy: Policy, *, dismissed: Collection[str] = ()
) -> list[Incident]:
    """The incidents with `counted` and `weight` as the penalty sees them."""
    return [
        incident.model_copy(
            update={
                "counted": incident.id not in dismissed
                and counts(incident, policy)
                and _cost(incident, policy) > 0,
                "weight": weight(incident.kind, policy),
            }
        )
        for incident in incidents
    ]


def _terms(incidents: Sequence[Incident], policy: Policy) -> list[_Term]:
    """The kinds that cost something, by name; of each the incidents with its largest factor."""
    by_kind: dict[str, list[Incident]] = {}
    for incident in incidents:
        if counts(incident, policy):
            by_kind.setdefault(incident.kind, []).append(incident)
    terms = []
    for kind, found in sorted(by_kind.items()):
        largest = max(factor(incident, policy) for incident in found)
        deciding = tuple(
            sorted((i for i in found if factor(i, policy) == largest), key=lambda i: (i.first_at, i.id))
        )
        term = _Term(kind, _weight_in_sum(deciding[0], policy), largest, deciding)
        if term.cost > 0:
            terms.append(term)
    return terms


def _by_step(terms: Sequence[_Term], value: float, total: float) -> dict[str, float]:
    """The value shared out over steps: a kind's cost in equal parts over its incidents, scaled to the cap.

    What has no step stands under "". The parts add up to `value`: rounding goes to the largest.
    """
    shares: dict[str, float] = {}
    for term in terms:
        part = term.cost / len(term.incidents)
        for incident in term.incidents:
            step = incident.step_id or ""
            shares[step] = shares.get(step, 0.0) + part
    if not shares:
        return {}
    parts = {step: round(value * share / total, DECIMALS) for step, share in sorted(shares.items())}
    largest = min(parts, key=lambda step: (parts[step], step))
    rest = sum(part for step, part in parts.items() if step != largest)
    parts[largest] = round(value - rest, DECIMALS)
    return parts


def _reason(term: _Term, policy: Policy) -> PenaltyReason:
    return PenaltyReason(
        kind=term.kind,
        weight=term.weight,
        factor=term.factor,
        cost=term.cost,
        incidents=[incident.id for incident in term.incidents],
        text=_text(term, policy),
    )


def _text(term: _Term, policy: Policy) -> str:
    first = term.incidents[0]
    detector = registry().get(first.detector.id)
    if detector is not None and detector.flood:
        why = "a flood costs its share once"
    elif first.outcome == "success":
        why = "it succeeded"
    elif detector is not None and detector.pattern:
        why = f"it was {first.outcome}, but the trying is the misbehaviour"
    else:
        why = f"it was {first.outcome}"
    others = f" (and {len(term.incidents) - 1} more)" if len(term.incidents) > 1 else ""
    return (
        f"{term.kind} costs {term.cost:g} = {term.weight:g} × {term.factor:g}, since {why}: "
        f"{first.summary}{others}"
    )


def _drops(incident: Incident, policy: Policy) -> bool:
    detector = registry().get(incident.detector.id)
    return detector is not None and detector.drops and incident.confidence >= policy.penalty.min_confidence


def _cost(incident: Incident, policy: Policy) -> float:
    return _weight_in_sum(incident, policy) * factor(incident, policy)


def _weight_in_sum(incident: Incident, policy: Policy) -> float:
    """A kind's weight; of a flood only whether it has one, since its price is `flood` itself."""
    detector = registry().get(incident.detector.id)
    found = weight(incident.kind, policy)
    return float(found > 0) if detector is not None and detector.flood else found


def _most(detector: type[Detector], policy: Policy) -> float:
    """The largest factor that an incident of a detector can have."""
    return policy.penalty.flood if detector.flood else 1.0


def _negative(cost: float) -> float:
    return -cost if cost else 0.0
