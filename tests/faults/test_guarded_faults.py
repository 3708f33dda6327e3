"""Real rollouts while agent, serve and ClickHouse are killed: each ends with its verdict, or as failed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exact import ask, one, quarantined
from guarded import AGENTS, Load, Node, Ran
from machine import wait_until
from store_server import Server

from invigilator.incidents.store import Store

READY = os.geteuid() == 0 and Path("/sys/kernel/btf/vmlinux").exists()
pytestmark = [
    pytest.mark.skipif(not READY, reason="needs root and a kernel with BTF: no rollout was run"),
    pytest.mark.usefixtures("open_checkout"),
    pytest.mark.slow,
]
KILLS = 100
TWICE = "SELECT count() - uniqExact(segment_id) AS n FROM segments"


@pytest.fixture
def server(place: Path, library: Path) -> Iterator[Server]:
    data = place / "clickhouse"
    data.mkdir()
    made = Server(library, data)
    made.start()
    yield made
    made.kill()


def judged(report: dict[str, Any]) -> tuple[Any, ...]:
    """What the verdict says of the agent, without what names this one rollout."""
    penalty = report["penalty"]
    incidents = [
        (i["kind"], i["outcome"], i["phase"], i["counted"], i["weight"]) for i in report["incidents"]
    ]
    return (penalty["value"], penalty["bound"], penalty["drop"], penalty["by_step"], sorted(incidents))


def check(store: Store, ran: Ran, calm: dict[str, tuple[Any, ...]]) -> str:
    """That a rollout ended as it must; how it ended."""
    name = ran.rollout
    events = f"SELECT count() AS n, uniqExact(seq) AS seqs FROM events WHERE rollout_id = '{name}'"
    [counted] = ask(store, events)
    assert counted["n"] == counted["seqs"], name
    found = ask(store, f"SELECT status, value, drop FROM penalties_current WHERE rollout_id = '{name}'")
    if ran.report is not None and ran.report["status"] == "final":
        assert ran.code == 0, ran.said
        assert judged(ran.report) == calm[ran.agent], name
        assert ran.report["events"]["produced"] == ran.report["events"]["stored"] == counted["n"], name
        assert found == [{"status": "final", "value": calm[ran.agent][0], "drop": False}], name
        return "final"
    assert ran.code == 125, ran.said
    assert ran.report is None or (ran.report["status"], ran.report["penalty"]["value"]) == ("failed", None)
    failed, whole = [{"status": "failed", "value": None, "drop": True}], calm[ran.agent][0]
    # Nothing: the agent died before the sandbox was made. The whole verdict: it died between the removal of
    # the rollout's mark and the answer.
    assert found in ([], failed, [{"status": "final", "value": whole, "drop": False}]), (name, found)
    return "failed"


def test_a_hundred_kills_leave_each_rollout_its_verdict_or_failed_and_never_zero(
    place: Path, server: Server, seed: int
) -> None:
    choose = random.Random(seed)
    target = f"{server.url}/faults"
    node = Node(place, target)
    names = ["agent", "serve", "store"] * (KILLS // 3) + ["agent"]
    choose.shuffle(names)
    kills = dict.fromkeys(names, 0)
    try:
        calm = {agent: node.run(f"calm-{agent}", agent) for agent in AGENTS}
        assert all(one.report and one.report["status"] == "final" for one in calm.values()), calm
        expected = {agent: judged(one.report or {}) for agent, one in calm.items()}
        assert expected["honest"][0] == expected["writer"][0] == 0 > expected["cheat"][0]
        load = Load(node)
        for name in names:
            if name == "store":
                server.kill()
                time.sleep(choose.uniform(0.0, 1.0))
                server.start()
            else:
                wait_until(lambda name=name: node.kill(name), lambda: "nothing to kill")
            kills[name] += 1
            time.sleep(choose.uniform(0.0, 4.0))
        ran = load.stop()
        assert node.run("last", "writer").code == 0
        wait_until(lambda: not list(node.home.spool.glob("*.arrow")), lambda: "the spool does not empty")
        node.end()
        store = Store.open(target)
        ends = [check(store, one_ran, expected) for one_ran in ran]
        assert one(store, TWICE) == 0
        events = one(store, "SELECT count() AS n FROM events")
        assert events == one(store, "SELECT sum(rows) AS n FROM segments WHERE table_name = 'events'")
        store.close()
        print(
            f"kills {kills}; {events} events; {ends.count('final')} verdicts, {ends.count('failed')} failed"
        )
        assert ends.count("final") and ends.count("failed") and sum(kills.values()) == KILLS
        assert not quarantined(node.home.spool) and not list(node.home.rollouts.iterdir())
    finally:
        node.end()
