"""Rows of the store as penalties: one a sandbox, then one a rollout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter

from invigilator.guard.answers import RolloutPenalty, construct
from invigilator.guard.api.moment import Moment
from invigilator.guard.api.problem import ambiguous_rollout
from invigilator.incidents.records import PenaltyReason, PolicyVersions
from invigilator.incidents.store import Store

Columns = dict[str, list[Any]]
_REASONS = TypeAdapter(list[list[PenaltyReason]])


def rows_of(store: Store, moment: Moment, rollout_ids: Iterable[str], run_id: str | None) -> Columns:
    """The rows of each rollout's latest attempt; 409 where several runs have an id."""
    parameters = {
        "rollout_ids": json.dumps(list(dict.fromkeys(rollout_ids))),
        "run_id": run_id or "",
        "any_run": int(run_id is None),
    }
    found = moment.columns(store, "penalties", parameters)
    _complete(store, found)
    latest: dict[str, int] = {}
    runs: dict[str, str] = {}
    for name, run, attempt in zip(found["rollout_id"], found["run_id"], found["attempt"], strict=True):
        if runs.setdefault(name, run) != run:
            raise ambiguous_rollout(name, _runs(name, found))
        latest[name] = max(attempt, latest.get(name, 0))
    pairs = zip(found["rollout_id"], found["attempt"], strict=True)
    kept = [place for place, (name, attempt) in enumerate(pairs) if attempt == latest[name]]
    if len(kept) == len(latest) == len(found["rollout_id"]):
        return found
    kept.sort(key=found["sandbox_id"].__getitem__)
    return {name: [column[place] for place in kept] for name, column in found.items()}


def penalties_of(rows: Columns, detectors: Sequence[dict[str, int]], moment: Moment) -> list[RolloutPenalty]:
    """The penalty of each row's sandbox."""
    versions = cache(
        lambda *parts: PolicyVersions(confinement=parts[0], detection=parts[1], penalty=parts[2])
    )
    parsed = cache(json.loads)
    known = zip(rows["confinement"], rows["detection"], rows["penalty"], strict=True)
    count = len(rows["rollout_id"])
    reasons = "[" + ",".join(text or "[]" for text in rows["reasons"]) + "]"
    return construct(
        {
            "rollout_id": rows["rollout_id"],
            "run_id": [run or None for run in rows["run_id"]],
            "attempt": rows["attempt"],
            "value": rows["value"],
            "bound": rows["bound"],
            "drop": [drop or value is None for drop, value in zip(rows["drop"], rows["value"], strict=True)],
            "status": rows["status"],
            "failure": [failure or None for failure in rows["failure"]],
            "by_step": [_shares(text) for text in rows["by_step"]],
            "reasons": _REASONS.validate_json(reasons),
            "revision": rows["revision"],
            "versions": [versions(*parts) for parts in known],
            "detectors": detectors,
            "watermark": rows["watermark"],
            "enforcement": [parsed(text) for text in rows["enforcement"]],
            "unwatched": [parsed(text) for text in rows["unwatched"]],
            "group": [group or None for group in rows["group"]],
            "enforcement_differs": [False] * count,
            "recorded_at": [datetime.fromisoformat(text) for text in rows["recorded_at"]],
            "as_of": [moment.at] * count,
        }
    )


def by_rollout(penalties: Iterable[RolloutPenalty]) -> dict[str, list[RolloutPenalty]]:
    """The penalties of each rollout's sandboxes."""
    found: dict[str, list[RolloutPenalty]] = {}
    for one in penalties:
        found.setdefault(one.rollout_id, []).append(one)
    return found


def detectors_of(store: Store, moment: Moment, rows: Columns) -> list[dict[str, int]]:
    """Of each row, the detectors that judged it and count, with their versions."""
    parameters = {"versions": json.dumps(sorted(set(rows["detection"])))}
    told = moment.columns(store, "detectors_of", parameters)
    history: dict[str, list[dict[str, Any]]] = {}
    for values in zip(*told.values(), strict=True):
        one = dict(zip(told, values, strict=True))
        history.setdefault(one["detection"], []).append(one)
    agreed = {detection: _agreed(entries) for detection, entries in history.items()}
    made: dict[tuple[str, bytes, int], dict[str, int]] = {}
    found = []
    for detection, node, at in zip(rows["detection"], rows["node_id"], rows["recorded_at"], strict=True):
        if (known := agreed.setdefault(detection, {})) is None:
            entries = history[detection]
            key = (detection, node, sum(one["since"] <= at for one in entries))
            known = made[key] if key in made else made.setdefault(key, _in_force(entries, node, at))
        found.append(known)
    return found


def _agreed(entries: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """The detectors, where none of them was ever of two versions."""
    pairs = {(one["detector_id"], one["detector_version"]) for one in entries}
    return dict(pairs) if len(dict(pairs)) == len(pairs) else None


def _in_force(entries: Sequence[Mapping[str, Any]], node: bytes, at: str) -> dict[str, int]:
    """The latest version of each detector on a node at a time; of all nodes where that one told of none."""
    mine = [one for one in entries if one["node_id"] == node] or entries
    by_then = [one for one in mine if one["since"] <= at] or mine
    return {one["detector_id"]: one["detector_version"] for one in by_then}


def _complete(store: Store, rows: Columns) -> None:
    """Fill in what older rows lack."""
    lacking = [place for place, version in enumerate(rows["confinement"]) if not version]
    if not lacking:
        return
    sandboxes = json.dumps([str(UUID(bytes=rows["sandbox_id"][place])) for place in lacking])
    told = Moment(datetime.min, False).columns(store, "penalties_older", {"sandbox_ids": sandboxes})
    places = {sandbox: place for place, sandbox in enumerate(told["sandbox_id"])}
    for place in lacking:
        if (source := places.get(rows["sandbox_id"][place])) is not None:
            for name in told:
                rows[name][place] = told[name][source]


def _runs(name: str, rows: Columns) -> list[str]:
    pairs = zip(rows["rollout_id"], rows["run_id"], strict=True)
    return sorted({run for rollout, run in pairs if rollout == name})


def _shares(text: str) -> dict[str, float]:
    return {step: float(share) for step, share in json.loads(text).items()} if text else {}
