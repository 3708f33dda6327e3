"""A batch of penalties from end to end: client, HTTP, service, store, and back as objects."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from invigilator.guard.answers import RolloutPenalty
from invigilator.guard.bench import recorded
from invigilator.guard.bench.measure import Section
from invigilator.guard.bench.researchers import SERVER_VARIABLE
from invigilator.guard.bench.service import Serving, serving, stores
from invigilator.guard.client import PenaltyClient
from invigilator.guard.home import Home
from invigilator.incidents.store import Store

AIM_S = 1.0
REVISIONS = 3
SEED = 1


def penalties(rollouts: int = 200_000, batch: int = 32_000, rounds: int = 7) -> Section:
    """Seconds of one `batch` call over `rollouts` that are recorded in three revisions each, sync and async,
    pinned and as of a past time, on the embedded store and on a server where one is named."""
    section = Section(f"penalties of {batch:,} of {rollouts:,} rollouts, {REVISIONS} revisions each")
    for name, target in stores().items():
        with tempfile.TemporaryDirectory() as folder:
            home = Home(Path(folder) / "home").make()
            store = Store.open(target or home.store)
            store.migrate()
            recorded.fill(store, Path(folder) / "spool", rollouts, REVISIONS)
            store.close()
            wanted = random.Random(SEED).sample(recorded.rollout_names(rollouts), batch)
            with serving(Path(folder), target) as serve:
                _measure(section, name, serve, wanted, rounds)
    if SERVER_VARIABLE not in os.environ:
        section.missing.append(f"a ClickHouse server: name an empty one in {SERVER_VARIABLE}")
    return section


def _measure(section: Section, name: str, serve: Serving, wanted: list[str], rounds: int) -> None:
    with PenaltyClient(home=serve.home.root) as client:
        first = client.batch(wanted, timeout_s=600)
        version = first[0].versions.penalty if first[0].versions else ""
        at = datetime.now(UTC)
        calls: dict[str, Callable[[], list[RolloutPenalty]]] = {
            "": lambda: client.batch(wanted, timeout_s=600),
            ", async": lambda: asyncio.run(_async(serve.home.root, wanted)),
            ", as of a past time": lambda: client.batch(wanted, timeout_s=600, as_of=at),
            ", under a pinned version": lambda: client.batch(wanted, timeout_s=600, penalty_version=version),
        }
        for what, call in calls.items():
            took, spent = [], []
            for _ in range(rounds):
                began, cpu = time.monotonic(), time.process_time() + serve.cpu_s()
                found = call()
                took.append(time.monotonic() - began)
                spent.append(time.process_time() + serve.cpu_s() - cpu)
                assert [one.value for one in found] == [one.value for one in first]
            section.add(f"{name}: a batch{what}", "s", took, at_most=None if "pinned" in what else AIM_S)
            section.add(f"{name}: CPU of client and service{what}", "s", spent)


async def _async(home: Path, wanted: list[str]) -> list[RolloutPenalty]:
    async with PenaltyClient(home=home) as client:
        return await client.batch_async(wanted, timeout_s=600)
