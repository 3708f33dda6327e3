"""Reports judged by the product's own formula under real policies, for tests of pins, reviews, backtests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving import Service, incident, report, ship

from invigilator.guard import penalty
from invigilator.incidents.records import (
    CoverageState,
    DetectorRef,
    Incident,
    PolicyRef,
    PolicyVersions,
    Report,
)
from invigilator.incidents.rows import DetectorRow, detector_rows, policy_rows
from invigilator.profiles import canonical, library
from invigilator.profiles.policy import Policy

WHOLE: Mapping[str, CoverageState] = dict.fromkeys(
    ("process", "file", "network", "privilege", "output"), "ok"
)


def policy(text: str = "", name: str = "p") -> Policy:
    """A policy that extends swe-task; `text` is the YAML of its penalty part, one line."""
    part = f"penalty: {text}\n" if text else ""
    return library.load_text(f"version: 1\nname: {name}\nextends: swe-task\n{part}").policy


def versions(rules: Policy) -> PolicyVersions:
    """Its versions."""
    return PolicyVersions(**canonical.policy_versions(rules)._asdict())


def found(kind: str, number: int = 0, **changes: Any) -> Incident:
    """An incident of the detector that is called like its kind."""
    return incident(kind, number, detector=DetectorRef(id=kind, version=1), **changes)


def judged(rollout_id: str, rules: Policy, incidents: Sequence[Incident] = (), **changes: Any) -> Report:
    """A report as the agent makes it; `changes` replace its fields before it is judged."""
    coverage = {**WHOLE, **changes.pop("coverage", {})}
    failure = changes.get("failure")
    partial = penalty.is_partial(rules, coverage)
    status = "failed" if failure else "partial" if partial else "final"
    return report(
        rollout_id,
        penalty.marked(incidents, rules),
        policy=PolicyRef(name=rules.name, versions=versions(rules)),
        coverage=coverage,
        status=status,
        penalty=penalty.compute(incidents, rules, coverage, status),
        **changes,
    )


def ship_rules(service: Service, rules: Policy, folder: Path) -> str:
    """Ship a policy's text as an agent does; its penalty version."""
    ref = PolicyRef(name=rules.name, versions=versions(rules))
    text = canonical.dumps(rules.model_dump(mode="json")).decode()
    ship(service, {"policies": policy_rows(ref, text)}, folder)
    return ref.versions.penalty


def ship_detectors(
    service: Service, rules: Policy, told: Mapping[str, tuple[int, bool]], folder: Path
) -> None:
    """Ship rows of detectors: id → (version, monitor-only)."""
    made = [
        DetectorRow(name, version, name, "tamper", "s", {}, monitored, 1.0)
        for name, (version, monitored) in told.items()
    ]
    ship(service, {"detectors": detector_rows(made, versions(rules).detection)}, folder)


def ask(service: Service, ids: Sequence[str], **more: Any) -> list[dict[str, Any]]:
    """The answer for a batch, which must be one."""
    answer = service.client().post("/v1/penalties", json={"rollout_ids": list(ids), **more})
    assert answer.status_code == 200, answer.text
    penalties: list[dict[str, Any]] = json.loads(answer.content)["penalties"]
    return penalties
