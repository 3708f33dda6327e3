"""GET /v1/health: whether the service can answer, and why not. Needs no token, tells nothing recorded.
GET /v1/stay: a node's agent says that rollouts run."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import State, StoreGate
from invigilator.guard.release import version

router = APIRouter(prefix="/v1", tags=["health"])


class Health(BaseModel):
    """`status` is `ok` exactly when the store is open; `detail` says why it is not."""

    status: Literal["ok", "unavailable"]
    version: str
    store: State
    detail: str
    pid: int


@router.get("/health", responses={503: {"model": Health}})
async def health(request: Request, response: Response) -> Health:
    """200 when the store is open, 503 with the same body when it is not."""
    gate: StoreGate = request.app.state.gate
    ready = gate.state == "ready"
    response.status_code = 200 if ready else 503
    return Health(
        status="ok" if ready else "unavailable",
        version=version(),
        store=gate.state,
        detail=gate.detail,
        pid=request.app.state.pid,
    )


@router.get("/stay", status_code=204)
async def stay(caller: Annotated[Caller, Depends(needs("ingest"))]) -> None:
    """Nothing, but a service that ends when idle counts its idleness from now: rollouts run."""
