"""What is kept and handed out: incidents, penalties, reviews, reports.

The field names are those of the report (JSON) and of the store's columns. Every model is frozen: a change is
a new record (an incident's new version, a penalty's new revision).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Channel = Literal["retrieval", "tamper", "network", "flood", "escape", "sensor"]
Severity = Literal["info", "low", "medium", "high", "critical"]
Outcome = Literal["denied", "failed", "success"]
Use = Literal["none", "retrieved", "integrated"]
Intent = Literal["deliberate", "accidental", "unknown"]
PhaseName = Literal["setup", "agent", "verify", "unknown"]
Status = Literal["final", "partial", "failed"]
CoverageState = Literal["ok", "degraded", "failed", "disabled"]
EnforcementState = Literal["enforce", "complain", "absent", "off", "none"]
"""`none`: whatever others enforce there, the guard has set nothing (a container that it is attached to)."""
COVERAGE_CLASSES = ("process", "file", "network", "privilege", "output", "denial")
ENFORCEMENT_TIERS = ("seccomp", "apparmor", "cgroup", "network")


class Record(BaseModel):
    """Base of all records: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DetectorRef(Record):
    """Which detector decided, and in which version."""

    id: str
    version: int


class Incident(Record):
    """A detector's verdict on one sandbox, grouped by (kind, outcome, phase, step).

    `id` is the hex SHA-256 (first 32 digits) of sandbox, kind, grouping key and detector version. `evidence`
    holds copies of the deciding events as JSON objects, the first `EVIDENCE_MAX` of `count`.
    """

    id: str
    kind: str
    channel: Channel
    severity: Severity
    outcome: Outcome
    use: Use = "none"
    intent: Intent = "unknown"
    confidence: float
    phase: PhaseName
    step_id: str | None = None
    first_at: datetime
    last_at: datetime
    count: int
    summary: str
    evidence: list[dict[str, Any]]
    detector: DetectorRef
    attack: list[str] = []
    monitor_only: bool = False
    counted: bool = False
    weight: float = 0.0


EVIDENCE_MAX = 20


class PenaltyReason(Record):
    """One term of a penalty's sum: weight × factor = cost, and the incidents it stands for."""

    kind: str
    weight: float
    factor: float
    cost: float
    incidents: list[str]
    text: str


class Penalty(Record):
    """What a rollout's incidents cost. `value` ≤ 0, or None where the evidence is incomplete (never 0)."""

    value: float | None
    bound: bool = False
    drop: bool = False
    by_step: dict[str, float] = {}
    reasons: list[PenaltyReason] = []
    revision: int = 1


class Exit(Record):
    """How a command ended; `code` is 128 + signal where a signal ended it."""

    code: int
    reason: Literal["exited", "signalled", "timeout", "oom", "limit"]


class PhaseRecord(Record):
    """One phase of a rollout."""

    name: PhaseName
    exit: Exit | None = None
    started_at: datetime
    ended_at: datetime | None = None


class PolicyVersions(Record):
    """`sha256:` and hex digits of each part's canonical JSON."""

    confinement: str
    detection: str
    penalty: str


class PolicyRef(Record):
    """Which policy, in which versions."""

    name: str
    versions: PolicyVersions


class PolicyChange(Record):
    """Another policy that was put in force on a sandbox while it ran. What the network and the limits let be
    is judged by it from then on; all else stays by the policy of the report.

    `tiers`: what became of each: `changed`, `unchanged`, `new commands only`, `not changed`. `versions`: its
    own, by which its text is found; None in reports from before all was judged by the policy in force. Of
    these alone, `degraded`: classes of events judged by what had changed; `allows_more`: those of them in
    which more was allowed.
    """

    at: datetime
    name: str
    confinement: str
    tiers: dict[str, str]
    versions: PolicyVersions | None = None
    degraded: list[str] = []
    allows_more: list[str] = []


class EventCounts(Record):
    """`produced = stored + lost`; `lost_by` is keyed "class/reason"."""

    produced: int
    stored: int
    lost: int
    shipped: int
    lost_by: dict[str, int] = {}


class Presence(Record):
    """A process that was there before its cgroup was watched."""

    pid: int
    command: str
    started_at: datetime


class Attached(Record):
    """Of a cgroup that others made: since when it was watched. `whole`: nobody was in it before; else
    `before` names who was, the first 100 of them. `ended`: why the watch did; `asked`: it was told to."""

    cgroup: str
    since: datetime
    whole: bool
    before: list[Presence] = []
    ended: Literal["empty", "removed", "asked"]


class Report(Record):
    """The verdict on one sandbox's rollout: `--report`, `box.verdict()`, the API's answer for a rollout."""

    report_version: Literal[1] = 1
    run_id: str | None = None
    rollout_id: str
    attempt: int = 1
    sandbox_id: str
    backend: str
    labels: dict[str, str] = {}
    policy: PolicyRef
    policy_changes: list[PolicyChange] = []
    started_at: datetime
    ended_at: datetime
    phases: list[PhaseRecord]
    exit: Exit | None
    failure: str | None = None
    status: Status
    watermark: int
    enforcement: dict[str, EnforcementState]
    coverage: dict[str, CoverageState]
    events: EventCounts
    incidents: list[Incident]
    penalty: Penalty
    attached: Attached | None = None


class Review(Record):
    """A person's decision on an incident."""

    incident_id: str
    decision: Literal["confirm", "dismiss", "comment"]
    reviewer: str
    comment: str = ""
    at: datetime
