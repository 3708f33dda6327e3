"""Falco's alerts as incidents: which sandbox an alert is of, and what of it an incident says.

An alert is a sign: what a rule of Falco's takes for suspicious, honest work does too. Its incidents are for
people (monitor-only) and cost nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from invigilator.incidents.records import EVIDENCE_MAX, Channel, DetectorRef, Incident, Severity

SEVERITIES: Mapping[str, Severity] = {
    "emergency": "critical",
    "alert": "critical",
    "critical": "critical",
    "error": "high",
    "warning": "medium",
    "notice": "low",
    "informational": "info",
    "debug": "info",
}
CHANNELS: Sequence[tuple[str, Channel]] = (
    ("mitre_privilege_escalation", "escape"),
    ("mitre_credential_access", "retrieval"),
    ("mitre_collection", "retrieval"),
    ("mitre_command_and_control", "network"),
    ("mitre_exfiltration", "network"),
    ("network", "network"),
    ("mitre_persistence", "tamper"),
    ("mitre_defense_evasion", "tamper"),
)
"""By a rule's tags, the first that fits; `sensor` where none does."""
TECHNIQUE = re.compile(r"T\d{4}(\.\d{3})?")
LONG_ID = re.compile(r"[0-9a-f]{64}")
SHORT_ID = 12
OWN_NAME = re.compile(r"invigilator-([0-9a-f-]{36})")
SLACK = timedelta(seconds=60)
"""Of the clocks of Falco and of the node, around a sandbox's life."""
OUTPUT_MOST = 4096
CONFIDENCE = 0.5


class Alert(BaseModel):
    """One alert, as Falco's http_output sends it (json_output: true). Fields of other versions are let be."""

    model_config = ConfigDict(extra="ignore")

    rule: Annotated[str, Field(min_length=1, max_length=256)]
    priority: Annotated[str, Field(max_length=32)]
    time: datetime
    output: Annotated[str, Field(max_length=64 << 10)] = ""
    output_fields: dict[str, Any] | None = None
    hostname: Annotated[str, Field(max_length=256)] = ""
    source: Annotated[str, Field(max_length=64)] = ""
    tags: list[Annotated[str, Field(max_length=128)]] = []
    uuid: Annotated[str, Field(max_length=64)] = ""

    def row(self) -> dict[str, Any]:
        """Its row of `falco_alerts`."""
        fields = self.output_fields or {}
        at = self.time if self.time.tzinfo else self.time.replace(tzinfo=UTC)
        return {
            "at": at,
            "alert_id": self.uuid or self.digest(),
            "rule": self.rule,
            "priority": self.priority.lower(),
            "output": self.output[:OUTPUT_MOST],
            "fields": json.dumps(fields, sort_keys=True, default=str),
            "container_id": _text(fields.get("container.id")),
            "container_name": _text(fields.get("container.name")),
            "hostname": self.hostname,
            "source": self.source,
            "tags": self.tags,
        }

    def digest(self) -> str:
        """What stands for the alert where Falco gave it no uuid."""
        whole = json.dumps(self.model_dump(mode="json"), sort_keys=True, default=str)
        return hashlib.sha256(whole.encode("utf-8", "backslashreplace")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Box:
    """A sandbox with a verdict. `place`: of the cgroup that others made, "" where the guard made it."""

    sandbox_id: str
    run_id: str
    rollout_id: str
    attempt: int
    place: str
    started_at: datetime
    ended_at: datetime
    detection_version: str
    penalty_version: str


class Boxes:
    """Finds an alert's sandbox: by the name that the guard gave its container, or by the id in the place."""

    def __init__(self, boxes: Iterable[Box]) -> None:
        self._by_id: dict[str, Box] = {}
        self._by_container: dict[str, list[Box]] = {}
        for box in boxes:
            self._by_id[box.sandbox_id] = box
            for found in LONG_ID.findall(box.place):
                self._by_container.setdefault(found[:SHORT_ID], []).append(box)

    def of(self, alert: Mapping[str, Any]) -> Box | None:
        """The sandbox of a row of `falco_alerts`, or None."""
        if named := OWN_NAME.fullmatch(alert["container_name"]):
            return self._by_id.get(named[1])
        at: datetime = alert["at"]
        for box in self._by_container.get(alert["container_id"][:SHORT_ID], ()):
            if box.started_at - SLACK <= at <= box.ended_at + SLACK:
                return box
        return None


def incidents(alerts: Iterable[Mapping[str, Any]], boxes: Boxes) -> list[tuple[Box, Incident]]:
    """One incident a sandbox and rule, of distinct alerts in the order of their times."""
    grouped: dict[tuple[str, str], tuple[Box, dict[str, Mapping[str, Any]]]] = {}
    for alert in alerts:
        if box := boxes.of(alert):
            key = (box.sandbox_id, kind_of(alert["rule"]))
            grouped.setdefault(key, (box, {}))[1].setdefault(alert["alert_id"], alert)
    return [(box, _incident(box, kind, [*found.values()])) for (_, kind), (box, found) in grouped.items()]


def kind_of(rule: str) -> str:
    """`falco.` and the rule's name in small letters, digits and underscores."""
    slug = re.sub(r"[^a-z0-9]+", "_", rule.lower()).strip("_")[:56]
    return f"falco.{slug or 'rule'}"


def channel_of(tags: Iterable[str]) -> Channel:
    """By `CHANNELS`."""
    held = set(tags)
    return next((channel for tag, channel in CHANNELS if tag in held), "sensor")


def _incident(box: Box, kind: str, alerts: list[Mapping[str, Any]]) -> Incident:
    alerts.sort(key=lambda one: (one["at"], one["alert_id"]))
    first = alerts[0]
    evidence = [
        {"tier": "falco", "at": one["at"].isoformat(), "output": one["output"], "fields": one["fields"]}
        for one in alerts[:EVIDENCE_MAX]
    ]
    identity = "\0".join((box.sandbox_id, kind, "falco", "1"))
    return Incident(
        id=hashlib.sha256(identity.encode()).hexdigest()[:32],
        kind=kind,
        channel=channel_of(first["tags"]),
        severity=SEVERITIES.get(first["priority"], "info"),
        outcome="success",
        confidence=CONFIDENCE,
        phase="unknown",
        first_at=first["at"],
        last_at=alerts[-1]["at"],
        count=len(alerts),
        summary=f"Falco's rule {first['rule']!r} fired {len(alerts)} times: a sign, which costs nothing",
        evidence=evidence,
        detector=DetectorRef(id="falco", version=1),
        attack=[tag for tag in first["tags"] if TECHNIQUE.fullmatch(tag)],
        monitor_only=True,
    )


def _text(value: Any) -> str:
    return value[:256] if isinstance(value, str) else ""
