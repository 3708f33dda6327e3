"""`guard serve` as agents and clients meet it: segments taken, routes under many clients, memory held."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from invigilator.guard.bench import corpus
from invigilator.guard.bench.measure import Section
from invigilator.guard.bench.researchers import SERVER_VARIABLE
from invigilator.guard.errors import UnreachableError
from invigilator.guard.home import Home
from invigilator.guard.ship import URL_VARIABLE, Shipper
from invigilator.incidents import engine as engines
from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store

CLIENTS = 50
START_TIMEOUT_S = 120.0
ASKED_TOGETHER = 128
"""Rollouts in one of the batches that clients ask for."""
COPIES = 4
"""Of the corpus, in a segment: about a hundred thousand events."""
TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Serving:
    """A running `guard serve`."""

    home: Home
    pid: int

    def client(self) -> httpx.Client:
        """A client over its socket."""
        transport = httpx.HTTPTransport(uds=str(self.home.serve_socket))
        return httpx.Client(base_url="http://serve", transport=transport, timeout=120)

    def memory_mib(self, what: str = "VmRSS") -> float:
        """Its resident memory (`VmHWM`: the most it ever was), in MiB."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition(f"{what}:")[2].split()[0]) / 1024

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_S


@contextlib.contextmanager
def serving(folder: Path, store: str | None) -> Iterator[Serving]:
    """Run `guard serve` in a home of its own, on the home's embedded store or the one given."""
    folder.chmod(0o711)
    home = Home(folder / "home").make()
    command = [sys.executable, "-m", "invigilator.guard.cli.main", "serve", "--home", str(home.root)]
    command += ["--store", store] if store else []
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    found = Serving(home, process.pid)
    try:
        _wait_for(found, process, folder / "serve.log")
        yield found
    finally:
        process.terminate()
        process.wait(120)


def _wait_for(found: Serving, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with found.client() as client:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if client.get("/v1/health").status_code == 200:
                    return
            time.sleep(0.05)
    raise UnreachableError("guard serve did not start", where=log.read_text(errors="replace")[-500:])


def stores() -> dict[str, str | None]:
    """The stores to measure, by name: chDB in the home, and a server where one is named."""
    server = os.environ.get(SERVER_VARIABLE)
    return {"chDB": None} | ({"server": f"{server.rstrip('/')}/bench_{time.time_ns()}"} if server else {})


def ingest(segments: int, rounds: int) -> Section:
    """Rows a second from a full spool through the shipper and serve into each store, beside a plain insert of
    the same files into a table without roll-up, ledger and fsync; and serve's memory before and after."""
    section = Section(f"spool to store, {segments} segments of recorded events")
    for name, target in stores().items():
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder), target) as serve:
            section.add(f"{name}: serve's memory, store open", "MiB", [serve.memory_mib()])
            rates, spent = _shipped(serve, Path(folder), segments, rounds)
            section.add(f"{name}: rows stored a second", "rows", rates)
            section.add(f"{name}: rows stored a second of serve's CPU", "rows", spent)
            section.add(f"{name}: serve's memory after", "MiB", [serve.memory_mib()])
            section.add(f"{name}: serve's memory at most", "MiB", [serve.memory_mib("VmHWM")])
        with tempfile.TemporaryDirectory() as folder:
            plain = _plain(target or str(Path(folder) / "store"), Path(folder), segments, rounds)
        section.add(f"{name}: rows of a plain insert a second", "rows", plain)
        section.add(f"{name}: stored ÷ plain", "×", [statistics.median(rates) / statistics.median(plain)])
    if SERVER_VARIABLE not in os.environ:
        section.missing.append(f"a ClickHouse server: name an empty one in {SERVER_VARIABLE}")
    return section


def _shipped(serve: Serving, folder: Path, segments: int, rounds: int) -> tuple[list[float], list[float]]:
    """Rows a second of wall time, and of serve's CPU, a round each."""
    rates, spent = [], []
    for number in range(rounds + 1):
        spool = Spool(folder / f"spool-{number}")
        made = corpus.big_segments(spool, segments, COPIES)
        rows = sum(one.rows for one in made)
        with _own_serve():
            shipper = Shipper(serve.home, spool, lambda _segment: None)
            cpu, began = serve.cpu_s(), time.monotonic()
            shipper.start()
            if not shipper.wait_for([one.id for one in made], 3600):
                raise UnreachableError(f"the store takes nothing: {shipper.trouble}")
            took, used = time.monotonic() - began, serve.cpu_s() - cpu
            shipper.stop()
        spool.close()
        if number:
            rates.append(rows / took)
            spent.append(rows / max(used, 1 / TICKS_S))
    return rates, spent


@contextlib.contextmanager
def _own_serve() -> Iterator[None]:
    """The shipper's way is to this home's serve, wherever the environment sends an agent's."""
    before = os.environ.pop(URL_VARIABLE, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[URL_VARIABLE] = before


def _plain(target: str, folder: Path, segments: int, rounds: int) -> list[float]:
    store = Store.open(target)
    store.migrate()
    columns = store.columns()["events"]
    store.close()
    engine = engines.connect(target)
    rates = []
    try:
        described = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        engine.command(
            f"CREATE TABLE bench_plain ({described}) ENGINE = MergeTree ORDER BY (sandbox_id, seq)"
        )
        for number in range(rounds + 1):
            spool = Spool(folder / f"plain-{number}")
            made = corpus.big_segments(spool, segments, COPIES)
            began = time.monotonic()
            for one in made:
                engine.insert("bench_plain", [*columns], one.read_bytes(), {"async_insert": 0})
            if number:
                rates.append(sum(one.rows for one in made) / (time.monotonic() - began))
            spool.close()
    finally:
        engine.close()
    return rates


def api(events: int, seconds: float) -> Section:
    """Latency of each route with fifty clients that ask it one after the other, and serve's memory."""
    section = Section(f"the API under {CLIENTS} clients, over about {events:,} events")
    for name, target in stores().items():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            home = Home(place / "home").make()
            filled = corpus.fill(target or str(home.store), place, events)
            with serving(place, target) as serve:
                before = serve.memory_mib()
                for route, request in _requests(serve, filled).items():
                    began = time.monotonic()
                    found = asyncio.run(_load(serve, request, seconds))
                    _add(section, f"{name}: {route}", found, time.monotonic() - began)
                section.add(f"{name}: serve's memory before", "MiB", [before])
                section.add(f"{name}: serve's memory after", "MiB", [serve.memory_mib()])
                section.add(f"{name}: serve's memory at most", "MiB", [serve.memory_mib("VmHWM")])
    if SERVER_VARIABLE not in os.environ:
        section.missing.append(f"over a ClickHouse server: name an empty one in {SERVER_VARIABLE}")
    return section


def _add(section: Section, name: str, found: list[tuple[int, float]], seconds: float) -> None:
    good = [1000 * took for status, took in found if status == 200]
    if not good:
        section.missing.append(f"{name}: answered {sorted({status for status, _ in found})}")
        return
    p95, p99 = np.percentile(good, [95, 99])
    refused = len(found) - len(good)
    note = f"p95 {p95:,.1f}, p99 {p99:,.1f}; {len(good) / seconds:,.0f} a second"
    section.add(name, "ms", good, note=note + (f"; {refused} refused as too many" if refused else ""))


def _requests(serve: Serving, filled: corpus.Filled) -> dict[str, Callable[[int], bytes]]:
    """By route: the bytes of a client's n-th request."""
    some = filled.some
    with serve.client() as client:
        listed = client.get("/v1/incidents", params={"limit": 1}).json()
    incident = next(iter(listed["incidents"]))["id"]
    together = json.dumps({"rollout_ids": [some[n % len(some)][1] for n in range(ASKED_TOGETHER)]}).encode()
    count = json.dumps({"query": "SELECT kind, count() AS n FROM events_readable GROUP BY kind"}).encode()
    return {
        "GET /v1/health": lambda n: _request("GET", "/v1/health"),
        "GET /v1/rollouts": lambda n: _request("GET", "/v1/rollouts?limit=50"),
        "GET /v1/rollouts/{id}": lambda n: _request("GET", f"/v1/rollouts/{some[n % len(some)][1]}"),
        "GET /v1/incidents": lambda n: _request("GET", "/v1/incidents?limit=50"),
        "GET /v1/incidents/{id}": lambda n: _request("GET", f"/v1/incidents/{incident}"),
        f"POST /v1/penalties of {ASKED_TOGETHER}": lambda n: _request("POST", "/v1/penalties", together),
        "POST /v1/sql": lambda n: _request("POST", "/v1/sql", count),
    }


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: serve\r\nContent-Length: {len(body)}\r\n"
    return (head + ("Content-Type: application/json\r\n" if body else "") + "\r\n").encode() + body


async def _load(serve: Serving, request: Callable[[int], bytes], seconds: float) -> list[tuple[int, float]]:
    """Status and seconds of every answer to fifty clients, each with a connection of its own."""
    until = time.monotonic() + seconds
    found: list[tuple[int, float]] = []

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_unix_connection(str(serve.home.serve_socket), limit=1 << 24)
        try:
            while time.monotonic() < until:
                number += CLIENTS
                began = time.perf_counter()
                writer.write(request(number))
                status = await _answer(reader)
                found.append((status, time.perf_counter() - began))
                if status in (429, 503):
                    await asyncio.sleep(0.05)
        finally:
            writer.close()

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return found


async def _answer(reader: asyncio.StreamReader) -> int:
    """Read one answer to its end: its status. Read plainly, as a client's cost counts into the figure."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" in head:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0))
    return int(head.split(b" ", 2)[1])
