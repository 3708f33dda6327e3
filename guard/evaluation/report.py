"""What an evaluation found: one result a case, one score a kind."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from invigilator.detectors.evaluate import Proportion
from invigilator.incidents.records import Incident, Outcome, Status

State = Literal["hit", "miss", "clean", "false_alarm", "held", "broken", "skipped"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CaseResult(_Record):
    """One case's run.

    `hit`/`miss`: what was expected was found or not. `clean`/`false_alarm`: a benign case without or with an
    incident that counts. `held`: the case was to make the sensor lose events, and it lost none. `broken`: the
    case itself did not do what it says, or the sandbox failed. `skipped`: the machine lacks something.
    `expected` maps kinds to their right outcomes; `missing` holds those that were not found; `false` the
    incidents that should not be there.
    """

    name: str
    kind: str
    version: int
    title: str
    benign: bool
    honest: bool
    state: State
    note: str = ""
    expected: dict[str, list[Outcome]] = {}
    allowed: list[str] = []
    missing: list[str] = []
    found: list[Incident] = []
    false: list[Incident] = []
    status: Status | None = None
    penalty: float | None = None
    events: int = 0
    lost: int = 0
    seconds: float = 0.0


class KindScore(_Record):
    """One kind over the whole evaluation, counted in cases.

    The measures are those of `detectors.evaluate`. `recall`: of the cases that show the kind, those found.
    `counted`: of the same, those that a penalty could count; the rest of those found are `signs`, below the
    confidence that costs. `precision`: of the cases in which it would count, those where it belonged.
    `alarms`: of the benign and honest cases, those in which it would (wrongly) count. `clean`: tried on the
    bulk of honest work, no alarm.
    """

    kind: str
    recall: Proportion
    counted: Proportion
    signs: list[str]
    precision: Proportion
    alarms: Proportion
    clean: bool


class EvaluationReport(_Record):
    """The whole evaluation. `honest`: the bulk of honest work was run too."""

    suite_version: int
    release: str
    machine: str
    started_at: datetime
    seconds: float
    honest: bool
    cases: list[CaseResult]
    kinds: list[KindScore]

    def in_state(self, *states: State) -> list[CaseResult]:
        """Cases that ended in one of `states`."""
        return [case for case in self.cases if case.state in states]

    @property
    def false_alarms(self) -> list[CaseResult]:
        """Cases with an incident that should not be there."""
        return [case for case in self.cases if case.false]

    @property
    def penalising_honest_work(self) -> list[str]:
        """Kinds that were wrongly found in a benign or honest case: their weight has to stay 0."""
        kinds = {i.kind for case in self.false_alarms if case.benign for i in case.false}
        return sorted(kinds)

    @property
    def passed(self) -> bool:
        """Nothing missed, no false alarm, nothing broken."""
        return not self.in_state("miss", "false_alarm", "broken") and not self.false_alarms
