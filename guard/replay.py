"""Detectors over recorded events: the same code, the same order, the same verdicts as when they happened."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence

from invigilator.detectors.engine import Engine
from invigilator.ebpf.events import EventBatch
from invigilator.incidents.records import Incident
from invigilator.profiles.policy import Policy


def replay(
    policy: Policy,
    sandbox_id: uuid.UUID,
    wall_offset_ns: int,
    batches: Iterable[EventBatch],
    later: Mapping[str, Policy] | None = None,
) -> list[Incident]:
    """The incidents of one sandbox's events, given in `seq` order in batches of any size.

    `wall_offset_ns` is the sandbox's own (CLOCK_REALTIME − CLOCK_BOOTTIME), as its events' `wall_time` −
    `time_ns` tells. `later`: by confinement version, the policies that were put in force on it while it ran;
    None: only `policy` judges.
    """
    engine = Engine(policy, sandbox_id, wall_offset_ns, later)
    for batch in batches:
        engine.feed(batch)
    engine.finish()
    return list(engine.incidents())


def canonical(incidents: Sequence[Incident]) -> bytes:
    """Incidents as bytes that are equal exactly if the verdicts are: JSON with sorted keys."""
    plain = [incident.model_dump(mode="json") for incident in incidents]
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
