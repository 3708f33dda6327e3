"""The end of a sandbox's record: its last event read, stored, judged; the store caught up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from invigilator.ebpf.sensor import Loss
from invigilator.guard.opening import Watch
from invigilator.guard.pipeline import Watched
from invigilator.guard.refusals import Refusals
from invigilator.guard.services import Services
from invigilator.guard.verdict import Evidence, lost_by_class
from invigilator.incidents.records import CoverageState, Incident

_log = logging.getLogger("invigilator.settling")

SETTLE_TIMEOUT_S = 60.0
"""For the last events to be read, stored and judged; past that the rollout has failed."""
SHIP_WAIT_S = 10.0
"""For the store to catch up, where it takes anything; the verdict does not depend on it."""


def settle(services: Services, watch: Watch, fail: Callable[[str], None]) -> Evidence:
    """All that there is to judge a sandbox by. Its processes have ended; `fail` is told what did not work."""
    sensor, pipeline, watched = services.sensor, services.pipeline, watch.watched
    watch.facts.sensor_losses(sensor.loss(watch.slot))
    told = services.denials is None or services.denials.settle()
    final = pipeline.settle(watch.slot, SETTLE_TIMEOUT_S)
    if final and sensor.loss(watch.slot).produced > sensor.drained_to(watch.slot):
        # The last events showed refusals, of which the record now tells too.
        final = pipeline.settle(watch.slot, SETTLE_TIMEOUT_S)
    if not final:
        fail(pipeline.trouble or "the sandbox's events could not be read to their end")
    loss = sensor.loss(watch.slot)
    incidents = _judge(watched, loss)
    services.shipper.wait_for(watched.segments, SHIP_WAIT_S)
    return Evidence(
        incidents=incidents,
        final=final,
        loss=loss,
        stored=watched.stored_rows,
        shipped=watched.shipped_rows,
        watermark=sensor.drained_to(watch.slot),
        unjudged=watched.broken,
        denial=denial_coverage(services.denials, watch.slot, told),
    )


def denial_coverage(denials: Refusals | None, slot: int, told: bool) -> CoverageState:
    """Of a sandbox's refusals. `told`: all until now have become events."""
    if denials is None or not denials.claimed:
        return "disabled"
    return "ok" if told and denials.whole(slot) else "degraded"


def _judge(watched: Watched, loss: Loss) -> Sequence[Incident]:
    """The engine's last word; where it has none, `broken` says why."""
    try:
        watched.engine.feed_loss(lost_by_class(loss), loss.produced)
        watched.engine.finish()
        return watched.engine.incidents()
    except Exception as error:
        _log.exception("sandbox %s could not be judged", watched.sandbox_id)
        watched.broken = watched.broken or f"its events could not be judged: {error}"
        return []
