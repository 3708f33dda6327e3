"""Penalties under a version that the caller names: computed from what is recorded, by the one formula."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from invigilator.detectors.base import registry
from invigilator.guard.api.judged import Columns
from invigilator.guard.api.moment import Moment
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import fetch
from invigilator.guard.pinned import Pin
from invigilator.incidents.records import CoverageState, DetectorRef, Incident
from invigilator.incidents.store import Store
from invigilator.profiles.kinds import default_weights

# Read now: after the drop of privileges the detectors' files may be out of reach.
registry()
default_weights()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def penalty_part(store: Store, version: str) -> dict[str, Any]:
    """The penalty part that has a version; 404 for one that no recorded policy has, naming those known."""
    found = fetch(store, "penalty_versions", {"version": version})
    if not found:
        known = fetch(store, "known_penalty_versions", {})
        named = ", ".join(f"{one['penalty_version']} ({one['name']})" for one in known) or "none"
        detail = f"no recorded policy has the penalty version {version!r}"
        raise ProblemError(404, "no-such-penalty-version", detail, fix=f"known, the latest first: {named}")
    part: dict[str, Any] = json.loads(found[0]["text"])["penalty"]
    return part


def pin_for(
    store: Store, part: Mapping[str, Any], detections: Iterable[str], *, skip_unknown: bool = False
) -> Pin:
    """A penalty part over the detection versions given; 409 where the text of one is not in the store, unless
    those are to be skipped."""
    wanted = sorted(set(detections))
    rows = fetch(store, "detection_policies", {"versions": json.dumps(wanted)})
    texts = {row["detection"]: json.loads(row["text"]) for row in rows}
    pin = Pin(part, texts)
    unknown = [one for one in wanted if not pin.knows(one)]
    if unknown and not skip_unknown:
        detail = f"no policy with detection version {unknown[0]} can be read: nothing is judged anew"
        raise ProblemError(409, "policy-unknown", detail, fix="ask without penalty_version")
    return pin


def repin(store: Store, moment: Moment, rows: Columns, pin: Pin, version: str, run_id: str | None) -> Columns:
    """The rows with value, bound, drop, shares, reasons, status and version as under the pin."""
    which = {
        "rollout_ids": json.dumps(sorted(set(rows["rollout_id"]))),
        "run_id": run_id or "",
        "any_run": int(run_id is None),
    }
    incidents = _incidents(moment.columns(store, "incidents_of", which))
    holes = _coverage(moment.columns(store, "coverage_of", which))
    dismissed = frozenset(moment.columns(store, "dismissed", {})["incident_id"])
    found = {**rows, "penalty": [version] * len(rows["penalty"])}
    names = ("status", "value", "bound", "drop", "by_step", "reasons")
    new: list[tuple[Any, ...]] = []
    for place, sandbox in enumerate(rows["sandbox_id"]):
        judged = pin.judge(
            rows["detection"][place],
            incidents.get((sandbox, rows["revision"][place]), ()),
            holes.get(sandbox, {}),
            rows["status"][place] == "failed",
            dismissed,
        )
        one = judged.penalty
        reasons = (
            "[" + ",".join(reason.model_dump_json() for reason in one.reasons) + "]" if one.reasons else ""
        )
        steps = json.dumps(one.by_step) if one.by_step else ""
        new.append((judged.status, one.value, one.bound, one.drop, steps, reasons))
    columns = zip(*new, strict=True) if new else [()] * len(names)
    return found | {name: list(column) for name, column in zip(names, columns, strict=True)}


def _incidents(told: Columns) -> dict[tuple[bytes, int], list[Incident]]:
    """The incidents of each sandbox's verdict. They were checked when they were written."""
    found: dict[tuple[bytes, int], list[Incident]] = {}
    for values in zip(*told.values(), strict=True):
        row = dict(zip(told, values, strict=True))
        at = EPOCH + timedelta(microseconds=row.pop("first_us"))
        detector = DetectorRef(id=row.pop("detector_id"), version=row.pop("detector_version"))
        key = (row.pop("sandbox_id"), row.pop("revision"))
        row["step_id"] = row["step_id"] or None
        one = Incident.model_construct(
            **row, first_at=at, last_at=at, count=1, evidence=[], detector=detector
        )
        found.setdefault(key, []).append(one)
    for listed in found.values():
        listed.sort(key=lambda one: one.id)
    return found


def _coverage(told: Columns) -> dict[bytes, dict[str, CoverageState]]:
    found: dict[bytes, dict[str, CoverageState]] = {}
    for sandbox, name, state in zip(told["sandbox_id"], told["class"], told["last"], strict=True):
        found.setdefault(sandbox, {})[name] = state
    return found
