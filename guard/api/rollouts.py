"""/v1/rollouts and /v1/sandboxes: reports, and the events behind them."""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID

import pyarrow as pa
from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.problem import ProblemError, ambiguous_rollout
from invigilator.guard.api.reading import STATEMENTS, fetch
from invigilator.incidents.records import Report
from invigilator.incidents.store import Store

ARROW_STREAM = "application/vnd.apache.arrow.stream"
EVENTS_PER_ANSWER = 50_000


class AnyText(StringConvertor):
    """A part of an address that may hold slashes and newlines: an id is whatever the harness chose."""

    regex = r"[\s\S]+"


register_url_convertor("any", AnyText())
router = APIRouter(prefix="/v1", tags=["rollouts"])
Reader = Annotated[Caller, Depends(needs("verdicts"))]
Investigator = Annotated[Caller, Depends(needs("sql"))]
Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0, le=1_000_000)]


@router.get("/rollouts")
async def rollouts(
    request: Request,
    caller: Reader,
    run_id: str = "",
    rollout_id: str = "",
    status: str = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> dict[str, list[dict[str, Any]]]:
    """Rollouts with their penalties, the latest first; empty filters let all through."""
    parameters = {
        "run_id": run_id,
        "rollout_id": rollout_id,
        "status": status,
        "limit": limit,
        "offset": offset,
    }
    gate: StoreGate = request.app.state.gate
    return {"rollouts": await gate.run(lambda store: fetch(store, "rollouts", parameters))}


@router.get("/rollouts/{rollout_id:any}")
async def report(
    request: Request,
    response: Response,
    caller: Reader,
    rollout_id: str,
    run_id: str | None = None,
    attempt: Annotated[int, Query(ge=0)] = 0,
    sandbox_id: UUID | None = None,
) -> Report:
    """The report on a rollout's latest attempt (or `attempt`).

    Of a rollout with several sandboxes, that of the first to start, or of `sandbox_id`; the answer's header
    `x-sandboxes` names them all. Monitor-only incidents are left out for those who may not see them.
    """
    parameters = {
        "rollout_id": rollout_id,
        "run_id": run_id or "",
        "any_run": int(run_id is None),
        "attempt": attempt,
    }
    gate: StoreGate = request.app.state.gate
    found = await gate.run(lambda store: fetch(store, "reports", parameters))
    chosen = choose(found, rollout_id, sandbox_id, attempt)
    latest = [row["sandbox_id"] for row in found if row["attempt"] == chosen["attempt"]]
    response.headers["x-sandboxes"] = ", ".join(latest)
    whole = Report.model_validate_json(chosen["report"])
    return whole if caller.may("monitor_only") else without_monitored(whole)


def choose(
    found: list[dict[str, Any]], rollout_id: str, sandbox_id: UUID | None, attempt: int = 0
) -> dict[str, Any]:
    """The row asked for; 404 where there is none, 409 where several runs have one."""
    runs = sorted({row["run_id"] for row in found})
    if len(runs) > 1:
        raise ambiguous_rollout(rollout_id, runs)
    rows = [row for row in found if sandbox_id is None or row["sandbox_id"] == str(sandbox_id)]
    if not rows:
        fix = "it may still be running: a rollout has a report when it has ended"
        which = f", attempt {attempt}" if attempt else ""
        raise ProblemError(
            404, "no-such-rollout", f"there is no report on rollout {rollout_id!r}{which}", fix=fix
        )
    return rows[0]


def without_monitored(report: Report) -> Report:
    """The report as trainers and agents may see it: nothing that would teach evasion."""
    shown = [incident for incident in report.incidents if not incident.monitor_only]
    return report.model_copy(update={"incidents": shown})


@router.get("/sandboxes/{sandbox_id}/events", response_class=Response)
async def events(
    request: Request, caller: Investigator, sandbox_id: UUID, after: Annotated[int, Query(ge=0)] = 0
) -> Response:
    """Recorded events of a sandbox past `seq` number `after`, in order, as an Arrow stream.

    At most 50,000 an answer: ask again after the last one until an answer is empty.
    """
    parameters = {"sandbox_id": str(sandbox_id), "after": after, "limit": EVENTS_PER_ANSWER}
    gate: StoreGate = request.app.state.gate
    return Response(await gate.run(lambda store: stream(store, parameters)), media_type=ARROW_STREAM)


def stream(store: Store, parameters: dict[str, Any]) -> bytes:
    """The events as the bytes of an Arrow stream."""
    return arrow_bytes(store.select(STATEMENTS["events"], parameters))


def arrow_bytes(table: pa.Table) -> bytes:
    """A table as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@router.get("/policies")
async def policy(
    request: Request, caller: Investigator, detection: str, penalty: str, confinement: str = ""
) -> dict[str, Any]:
    """The policy that has these versions of its parts."""
    parameters = {"detection": detection, "penalty": penalty, "confinement": confinement}
    gate: StoreGate = request.app.state.gate
    found = await gate.run(lambda store: fetch(store, "policy", parameters))
    if not found:
        raise ProblemError(404, "no-such-policy", "no policy of these versions was recorded")
    return {"name": found[0]["name"], "policy": json.loads(found[0]["text"])}
