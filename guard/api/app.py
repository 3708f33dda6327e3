"""The application: routes under /v1, the page, and what every request passes through."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI

from invigilator.guard.api import (
    audit,
    backtests,
    exports,
    falco,
    forgetting,
    health,
    incidents,
    metrics,
    pages,
    penalties,
    problem,
    queries,
    retention,
    rollouts,
    segments,
)
from invigilator.guard.api.access import Access
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.outbox import Outbox
from invigilator.guard.api.revising import keep_up
from invigilator.guard.api.traffic import Traffic, TrafficRules
from invigilator.guard.release import version
from invigilator.incidents.store import Limits

ROUTERS = (
    health.router,
    segments.router,
    penalties.router,
    backtests.router,
    rollouts.router,
    incidents.router,
    queries.router,
    exports.router,
    metrics.router,
    audit.router,
    forgetting.router,
    falco.router,
    retention.router,
    pages.router,
)


def create(
    gate: StoreGate,
    access: Access,
    outbox: Outbox,
    traffic: Traffic | None = None,
    limits: Limits | None = None,
    left: Path | None = None,
) -> FastAPI:
    """The application over a store and a way to know callers; it opens and closes the store itself. `left`:
    the folder in which commands leave changes for the audit."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(gate.keep_open()), asyncio.create_task(keep_up(gate, outbox))]
        tasks.append(asyncio.create_task(falco.keep_joining(gate, outbox)))
        tasks.append(asyncio.create_task(forgetting.keep_forgetting(gate)))
        if left is not None:
            tasks.append(asyncio.create_task(audit.keep_picking_up(left, outbox)))
        yield
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await gate.close()
        outbox.close()

    app = FastAPI(
        title="Invigilator",
        version=version(),
        summary="Rollouts, incidents and penalties of AI agents in sandboxes",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.gate = gate
    app.state.outbox = outbox
    app.state.limits = limits or Limits()
    app.state.metrics = metrics.Metrics(gate)
    app.state.pid = os.getpid()
    problem.install(app)
    for router in ROUTERS:
        app.include_router(router, responses=problem.DOCUMENTED)
    app.add_middleware(TrafficRules, access=access, traffic=traffic or Traffic())
    app.add_middleware(metrics.Timed, metrics=app.state.metrics)
    return app
