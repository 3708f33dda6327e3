"""POST /v1/falco: alerts of Falco's `http_output`, kept all, and made incidents of the sandboxes they are
of."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, TypeAdapter, ValidationError

from invigilator.guard import falco
from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.outbox import Outbox
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import STATEMENTS, fetch
from invigilator.incidents.results import readable
from invigilator.incidents.rows import clean, incident_rows, rows
from invigilator.incidents.store import Store, StoreError

router = APIRouter(prefix="/v1", tags=["falco"])
ALERTS_MOST = 1000
JOIN_EVERY_S = 5.0
NAMES = uuid.UUID("c7d4e1a6-3c2f-4a52-9a7d-6d0a1f7be0f4")
ALERTS = TypeAdapter(list[falco.Alert])
_log = logging.getLogger("invigilator.serve")


class Taken(BaseModel):
    """How many alerts are durable now."""

    taken: int


@router.post("/falco")
async def alerts(request: Request, caller: Annotated[Caller, Depends(needs("falco"))]) -> Taken:
    """Take one alert (JSON), a list of them, or one a line. An alert sent again changes nothing."""
    told = parse(await request.body())
    outbox: Outbox = request.app.state.outbox
    made = [alert.row() for alert in told]
    segment = uuid.uuid5(NAMES, "\n".join(row["alert_id"] for row in made))
    await asyncio.to_thread(outbox.spool, "falco_alerts", rows("falco_alerts", made), segment)
    return Taken(taken=len(made))


def parse(body: bytes) -> list[falco.Alert]:
    """The alerts of a body; 422 says what is wrong with the first that is none."""
    try:
        text = body.decode("utf-8", "backslashreplace").strip()
        found: Any = (
            json.loads(text) if "\n{" not in text else [json.loads(line) for line in text.splitlines()]
        )
        found = clean(found)
        told = ALERTS.validate_python(found if isinstance(found, list) else [found])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ProblemError(422, "invalid-alert", f"{where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ProblemError(422, "invalid-alert", f"no JSON of Falco's: {error}") from error
    if not 0 < len(told) <= ALERTS_MOST:
        raise ProblemError(422, "invalid-alert", f"between 1 and {ALERTS_MOST} alerts go together")
    return told


async def keep_joining(gate: StoreGate, outbox: Outbox) -> None:
    """Make incidents of alerts whenever there are new alerts or verdicts; until cancelled."""
    seen: tuple[int, int] = (0, 0)
    while True:
        await asyncio.sleep(JOIN_EVERY_S)
        if gate.state == "ready":
            try:
                seen = await gate.run(functools.partial(join, outbox=outbox, seen=seen))
            except (ProblemError, StoreError) as error:
                _log.warning("alerts of Falco's wait: %s", error)


def join(store: Store, outbox: Outbox, seen: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Write the incidents that alerts and verdicts make and that are not yet there; what was counted."""
    [counts] = fetch(store, "falco_counts", {})
    now = (int(counts["alerts"]), int(counts["verdicts"]))
    if not now[0] or now == seen:
        return now
    boxes = falco.Boxes(falco.Box(**row) for row in _select(store, "falco_boxes"))
    told = {row["id"]: int(row["count"]) for row in fetch(store, "falco_told", {})}
    for box, incident in falco.incidents(_select(store, "falco_alerts"), boxes):
        if incident.count > told.get(incident.id, 0):
            who = {
                "sandbox_id": uuid.UUID(box.sandbox_id).bytes, "run_id": box.run_id,
                "rollout_id": box.rollout_id, "attempt": box.attempt,
                "detection_version": box.detection_version, "penalty_version": box.penalty_version,
            }  # fmt: skip
            name = f"{incident.id}/{incident.count}"
            made = incident_rows([incident], who, recorded_at=datetime.now(UTC))
            outbox.spool("incidents", made, uuid.uuid5(NAMES, name))
    outbox.flush(store)
    return now


def _select(store: Store, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = readable(store.select(STATEMENTS[name])).to_pylist()
    return found
