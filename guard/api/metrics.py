"""GET /v1/metrics: what Prometheus scrapes of the service, and what the last day's verdicts were.

No label's values come from an agent or a caller unchecked: routes are templates, kinds and reasons have to
look like names and are limited in number, and what does not fit is counted as `other`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import fetch
from invigilator.guard.release import version

router = APIRouter(prefix="/v1", tags=["metrics"])
NAME = re.compile(r"[a-z0-9_.]{1,64}")
VALUES_MOST = 300
"""Distinct values of one label; more become `other`."""
KEPT_S = 30.0
"""How long the last day's verdicts are kept: a scraper more shall be no load on the store."""
SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """Of one service. `rows`: what the store said last of the last day."""

    def __init__(self, gate: StoreGate) -> None:
        self._gate = gate
        self._asking = asyncio.Lock()
        self._asked_s = -KEPT_S
        self.rows: list[dict[str, Any]] = []
        self.registry = CollectorRegistry()
        self.segments = self._counter("segments", "Spool segments by table and outcome", "table", "outcome")
        self.rows_stored = self._counter("rows_stored", "Rows stored, by table", "table")
        self.bytes_received = self._counter("segment_received_bytes", "Bytes of segments received")
        self.penalties = self._counter("penalties_answered", "Rollouts whose penalty was asked for", "status")
        self.requests = Histogram(
            "invigilator_request_duration_seconds",
            "From a request's first byte to its answer's",
            ("method", "route", "status"),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.registry.register(_Now(gate, self))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"invigilator_{name}", text, labels, registry=self.registry)

    def stored(self, table: str, rows: int, size_bytes: int, *, duplicate: bool) -> None:
        """Count a segment that is in the store."""
        self.segments.labels(table, "duplicate" if duplicate else "stored").inc()
        self.bytes_received.inc(size_bytes)
        if not duplicate:
            self.rows_stored.labels(table).inc(rows)

    def refused(self) -> None:
        """Count a request whose segments will never be taken."""
        self.segments.labels("unknown", "refused").inc()

    def handed_out(self, statuses: Iterable[str]) -> None:
        """Count the answers of a batch."""
        for status, number in Tally(statuses).items():
            self.penalties.labels(status).inc(number)

    async def refresh(self) -> None:
        """Ask the store for the last day, unless it was asked just now, or is away."""
        async with self._asking:
            if time.monotonic() - self._asked_s < KEPT_S:
                return
            try:
                self.rows = await self._gate.run(lambda store: fetch(store, "metrics", {}), lane="sql")
                self._asked_s = time.monotonic()
            except ProblemError:
                self.rows = []


class _Now(Collector):
    """What is read at the moment of a scrape."""

    def __init__(self, gate: StoreGate, metrics: Metrics) -> None:
        self._gate = gate
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """See the base."""
        yield InfoMetricFamily("invigilator", "The service", value={"version": version()})
        yield gauge("store_up", "Whether the store is open", [((), float(self._gate.state == "ready"))])
        waiting = [((lane,), float(n)) for lane, n in self._gate.waiting().items()]
        yield gauge("store_waiting", "Requests that wait for the store, by lane", waiting, "lane")
        rows = self._metrics.rows
        yield last_day(rows, "incidents", "Incidents by kind and outcome", "kind", "outcome")
        yield last_day(rows, "rollouts", "Rollouts with a verdict, by status", "status")
        yield last_day(rows, "dropped", "Rollouts that are to be left out of training")
        yield last_day(rows, "events", "Events that the kernel produced")
        yield last_day(rows, "lost", "Events lost, by class and reason", "class", "reason")


def gauge(
    name: str, text: str, values: Iterable[tuple[tuple[str, ...], float]], *labels: str
) -> GaugeMetricFamily:
    """A gauge with its values."""
    made = GaugeMetricFamily(f"invigilator_{name}", text, labels=labels)
    for given, value in values:
        made.add_metric(given, value)
    return made


def last_day(rows: Sequence[dict[str, Any]], what: str, text: str, *labels: str) -> GaugeMetricFamily:
    """A gauge of what the store said, its labels' values made harmless."""
    values: dict[tuple[str, ...], float] = {}
    for row in rows:
        if row["what"] == what:
            given = tuple(row[column] for column in ("one", "two")[: len(labels)])
            key = given if all(NAME.fullmatch(one) for one in given) else ("other",) * len(labels)
            if key not in values and len(values) >= VALUES_MOST:
                key = ("other",) * len(labels)
            values[key] = values.get(key, 0.0) + float(row["n"] or 0.0)
    return gauge(f"{what}_last_day", f"{text}, in the last 24 hours", sorted(values.items()), *labels)


class Timed:
    """ASGI middleware: how long each route takes to answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request through and time it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        told = False

        async def watched(message: Message) -> None:
            nonlocal told
            if message["type"] == "http.response.start" and not told:
                told = True
                took_s = time.perf_counter() - began
                method = scope["method"] if scope["method"] in METHODS else "other"
                route = getattr(scope.get("route"), "path", "other")
                self._metrics.requests.labels(method, route, f"{message['status'] // 100}xx").observe(took_s)
            await send(message)

        await self._app(scope, receive, watched)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, caller: Annotated[Caller, Depends(needs("metrics"))]) -> Response:
    """Prometheus's text format, 0.0.4."""
    kept: Metrics = request.app.state.metrics
    await kept.refresh()
    return Response(generate_latest(kept.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
