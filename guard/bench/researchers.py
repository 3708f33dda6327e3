"""What a researcher waits for: ten questions over a store of recorded sandboxes."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from invigilator.guard.bench import corpus
from invigilator.guard.bench.measure import Section
from invigilator.incidents import queries as named
from invigilator.incidents.store import Limits, Store, StoreError

QUICK_EVENTS, EVENTS = 100_000, 2_000_000
FULL_EVENTS = 100_000_000
SERVER_VARIABLE = "INVIGILATOR_BENCH_SERVER"
"""URL of an empty ClickHouse server, for the figures that are of one."""
LIMITS = Limits(time_s=600.0, memory_bytes=8 << 30)
"""More than serve allows: how long a question takes is wanted, not whether it is refused."""
HUNT = (
    "SELECT run_id, exe, count() AS times, uniqExact(sandbox_id) AS sandboxes FROM events_readable "
    "WHERE kind = 'open' AND path = '/etc/passwd' GROUP BY run_id, exe ORDER BY times DESC LIMIT 50"
)
"""Through all events: who reads one file, by run and program."""
Parameters = Mapping[str, str]


def asked(box: str, rollout: str) -> dict[str, Parameters | str]:
    """The ten questions, with the parameters of one try: a named query's, or SQL."""
    return {
        "incidents_per_1000": {},
        "attempts_and_successes": {},
        "contaminated_rewards": {},
        "incidents_by_label": {"label": "task"},
        "rollout_report": {"rollout_id": rollout},
        "process_tree": {"sandbox_id": box},
        "files_touched": {"sandbox_id": box},
        "network_map": {"sandbox_id": box},
        "timeline": {"sandbox_id": box},
        "hunt through all events": HUNT,
    }


def queries(events: int, rounds: int = 7) -> Section:
    """Median and spread of each question, in turn, on the embedded store and on a server if one is named."""
    section = Section(f"ten questions over {events:,} events")
    with tempfile.TemporaryDirectory() as folder:
        _measure(section, "chDB", str(Path(folder) / "store"), Path(folder) / "work", events, rounds)
    if server := os.environ.get(SERVER_VARIABLE):
        with tempfile.TemporaryDirectory() as folder:
            target = f"{server.rstrip('/')}/bench_{os.getpid()}_{time.time_ns() % 10**6}"
            _measure(section, "server", target, Path(folder), events, rounds)
    else:
        section.missing.append(f"on a ClickHouse server: name an empty one in {SERVER_VARIABLE}")
    return section


def _measure(section: Section, name: str, target: str, folder: Path, events: int, rounds: int) -> None:
    folder.mkdir(exist_ok=True)
    began = time.monotonic()
    filled = corpus.fill(target, folder, events)
    took = time.monotonic() - began
    note = f"{filled.rollouts:,} rollouts; {took:,.0f} s"
    section.add(f"{name}: events filled in a second", "events", [filled.events / took], note=note)
    store = Store.open(target)
    try:
        sql = "SELECT sum(bytes_on_disk) AS n FROM system.parts WHERE active AND database = currentDatabase()"
        held = int(store.select(sql)["n"][0].as_py())
        section.add(
            f"{name}: bytes an event, all tables", "B", [held / filled.events], note=f"{held >> 20:,} MiB"
        )
        _ask(section, name, store, filled, rounds)
    finally:
        store.close()


def _ask(section: Section, name: str, store: Store, filled: corpus.Filled, rounds: int) -> None:
    choose = random.Random(1)
    took: dict[str, list[float]] = {}
    refused: dict[str, str] = {}
    for number in range(rounds + 1):
        for question, what in asked(*choose.choice(filled.some)).items():
            if question in refused:
                continue
            try:
                spent = _timed(_question(store, question, what))
            except StoreError as error:
                refused[question] = str(error)
                continue
            if number:
                took.setdefault(question, []).append(1000 * spent)
    for question, samples in took.items():
        section.add(f"{name}: {question}", "ms", samples, note=f"p95 {np.percentile(samples, 95):,.1f}")
    section.missing += [f"{name}: {question}: {why[:200]}" for question, why in refused.items()]


def _question(store: Store, question: str, what: Parameters | str) -> Callable[[], object]:
    if isinstance(what, str):
        return lambda: store.query(what, limits=LIMITS)
    return lambda: named.run(store, question, limits=LIMITS, **what)


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
