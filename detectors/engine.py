"""One sandbox's detectors, fed in `seq` order; what they found, as incidents.

    engine = Engine(policy, sandbox_id, wall_offset_ns)
    for batch in ...:
        engine.feed(batch)
    engine.finish()
    incidents = engine.incidents()

The same events give the same incidents, byte for byte, however they are cut into batches.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from invigilator.detectors.base import Detector, Intent, Outcome, Use, registry
from invigilator.detectors.context import Context
from invigilator.detectors.evidence import as_evidence, printable, wall_time
from invigilator.detectors.groups import GroupKey, Groups, Tally
from invigilator.detectors.scene import Scene
from invigilator.ebpf.events import EventBatch, Phase
from invigilator.incidents.records import DetectorRef, Incident, PhaseName
from invigilator.profiles.policy import Policy

EXAMPLES_MAX = 3
"""Objects that a summary names."""
EXAMPLE_CHARACTERS_MAX = 120

_OUTCOMES = {Outcome.DENIED: "denied", Outcome.FAILED: "failed", Outcome.SUCCESS: "success"}
_INTENTS = {Intent.UNKNOWN: "unknown", Intent.ACCIDENTAL: "accidental", Intent.DELIBERATE: "deliberate"}
_USES = {Use.NONE: "none", Use.RETRIEVED: "retrieved", Use.INTEGRATED: "integrated"}
_PHASES: dict[int, PhaseName] = {
    Phase.UNKNOWN: "unknown",
    Phase.SETUP: "setup",
    Phase.AGENT: "agent",
    Phase.VERIFY: "verify",
}


class OrderError(ValueError):
    """Events came late: a verdict on them would depend on how they were cut into batches."""


class Engine:
    """The detectors of one sandbox. `wall_offset_ns`: wall time minus CLOCK_BOOTTIME. `later`: by confinement
    version, policies that were or will be put in force on it while it runs; None: only `policy` judges."""

    def __init__(
        self,
        policy: Policy,
        sandbox_id: uuid.UUID,
        wall_offset_ns: int,
        later: Mapping[str, Policy] | None = None,
    ) -> None:
        self._policy = policy
        self._sandbox_id = sandbox_id
        self._wall_offset_ns = wall_offset_ns
        self._context = Context(policy, later)
        self._last_seq = 0
        self._fed = 0
        thresholds = policy.detectors.thresholds
        self._detectors = [
            detector(self._context, thresholds.get(name, {}))
            for name, detector in registry().items()
            if name not in policy.detectors.disabled
        ]
        self._groups = {detector.id: Groups(self._describe) for detector in self._detectors}

    def feed(self, batch: EventBatch) -> None:
        """Judge the next events of the sandbox, each once, `seq` ascending (gaps are losses). `OrderError`
        where one is not later than all before."""
        seq = batch.records["seq"]
        if not len(seq):
            return
        if int(seq[0]) <= self._last_seq or (len(seq) > 1 and not (seq[1:] > seq[:-1]).all()):
            raise OrderError(f"sandbox {self._sandbox_id}: an event is not later than {self._last_seq}")
        self._last_seq = int(seq[-1])
        self._fed += len(seq)
        scene = Scene(self._context, batch)
        scene.prepare()
        present = np.flatnonzero(np.bincount(batch.records["kind"])).tolist()
        for detector in self._detectors:
            if not detector.reads.isdisjoint(present):
                for hits in detector.feed(scene):
                    self._groups[detector.id].add(hits)

    def feed_loss(self, lost_by: Mapping[str, int], produced: int) -> None:
        """Tell what was lost in all: class name (of `EventClass`, lower case) → events, of `produced`.

        Verdicts do not depend on it, or a replay could not repeat them: that events were lost shows in the
        gaps of `seq`, and that the sandbox caused it is an event of its own (LIMIT with text `sensor`).
        ValueError where the record holds more events than were produced.
        """
        lost = sum(lost_by.values())
        if self._fed > produced:
            raise ValueError(
                f"sandbox {self._sandbox_id}: {self._fed} events read, {produced} produced, {lost} lost"
            )

    def finish(self) -> None:
        """No more events will come."""
        self._context.finished = True

    def incidents(self) -> list[Incident]:
        """What the events so far amount to, by first event, then id; calling it changes nothing."""
        found = []
        for detector in self._detectors:
            groups = self._groups[detector.id]
            standing = list(detector.standing())
            if standing:
                groups = groups.copy()
                for hits in standing:
                    groups.add(hits)
            for key, tally in groups.settled(detector.walked).items():
                found.append(self._incident(detector, key, tally))
        return sorted(found, key=lambda incident: (incident.first_at, incident.id))

    def _describe(self, batch: EventBatch, row: int) -> dict[str, Any]:
        return as_evidence(batch, row, self._sandbox_id, self._wall_offset_ns)

    def _incident(self, detector: Detector, key: GroupKey, tally: Tally) -> Incident:
        outcome = Outcome(key.outcome)
        evidence = [fact for _, _, fact in sorted(tally.evidence, key=lambda item: item[1])]
        return Incident(
            id=self._id(detector, key),
            kind=detector.kind,
            channel=detector.channel,
            severity=detector.severity,
            outcome=_OUTCOMES[outcome],  # type: ignore[arg-type]
            use=_USES[Use(tally.use)],  # type: ignore[arg-type]
            intent=_INTENTS[tally.intent],  # type: ignore[arg-type]
            confidence=round(tally.confidence, 4),
            phase=_PHASES.get(key.phase, "unknown"),
            step_id=self._step(key.step),
            first_at=wall_time(tally.first_ns, self._wall_offset_ns),
            last_at=wall_time(tally.last_ns, self._wall_offset_ns),
            count=tally.count,
            summary=_summary(detector, outcome, tally, evidence),
            evidence=evidence,
            detector=DetectorRef(id=detector.id, version=detector.version),
            attack=list(detector.attack),
            monitor_only=detector.id in self._policy.detectors.monitor_only,
        )

    def _id(self, detector: Detector, key: GroupKey) -> str:
        parts = (self._sandbox_id.hex, detector.kind, *map(str, key), detector.id, str(detector.version))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def _step(self, ordinal: int) -> str | None:
        if not ordinal:
            return None
        name = self._context.steps.get(ordinal)
        return printable(name) if name else str(ordinal)


def _summary(detector: Detector, outcome: Outcome, tally: Tally, evidence: list[dict[str, Any]]) -> str:
    """One sentence: what happened, to what, how often."""
    named = list(dict.fromkeys(e for fact in evidence if (e := detector.example(fact))))
    shown = ", ".join(_shortened(name) for name in named[:EXAMPLES_MAX])
    times = f" ({tally.count} events)" if tally.count > 1 else ""
    more = " and more" if len(named) > EXAMPLES_MAX else ""
    return f"{detector.phrases.of(outcome)}{': ' if shown else ''}{shown}{more}{times}."


def _shortened(text: str) -> str:
    return text if len(text) <= EXAMPLE_CHARACTERS_MAX else text[: EXAMPLE_CHARACTERS_MAX - 1] + "…"
