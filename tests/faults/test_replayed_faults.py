"""Recorded sandboxes through the real spool, serve and ClickHouse, all of them killed, filled and cut off."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from exact import check_events, check_judged_at_once, check_verdicts, quarantined, verdicts
from machine import DAY_NS, Machine, wait_until
from replaying import read_log

from invigilator.incidents.store import Store

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: serve becomes another user, disks are mounted"),
    pytest.mark.usefixtures("open_checkout"),
]
ROUNDS = 100
CALM_MOST = 60
"""Attempts that the undisturbed run repeats; all are judged at once, too."""
CALM_EVERY = 8
"""After so many disturbances what waits gets through, or little would ever."""


def disturbances(machine: Machine) -> dict[str, Callable[[], None]]:
    """What may happen to a machine, by name."""

    def storm() -> None:
        machine.to_serve.stormy = not machine.to_serve.stormy
        machine.to_store.stormy = not machine.to_store.stormy
        machine.to_serve.cut_all()

    def jump() -> None:
        assert machine.clock is not None
        machine.clock.shift(
            machine.choose.choice((-3, -1, 0, 1, 40)) * DAY_NS + machine.choose.randrange(10**9)
        )

    return {
        "agent": lambda: machine.kill("agent"),
        "serve": lambda: machine.kill("serve"),
        "store": lambda: machine.kill("store"),
        "spool full": lambda: machine.fill(machine.home.spool),
        "store full": lambda: machine.fill(machine.data),
        "connection": storm,
        "clock": jump,
    }


def check_store(machine: Machine) -> tuple[int, list[tuple[str, int]]]:
    """That the store holds what it must; its events, and the attempts that were judged."""
    log = read_log(machine.log)
    store = Store.open(machine.store_url)
    events, judged = check_events(store, log), check_verdicts(store, log)
    assert judged
    check_judged_at_once(store, judged)
    store.close()
    assert quarantined(machine.home.spool) == []
    return events, judged


def check_against_a_calm_run(machine: Machine, place: Path, library: Path) -> tuple[int, int]:
    """The store after faults, and beside it some of the attempts in a run that nothing happened to."""
    events, judged = check_store(machine)
    count = len(judged)
    judged = sorted(machine.choose.sample(judged, min(count, CALM_MOST)))
    store = Store.open(machine.store_url)
    disturbed = verdicts(store, judged)
    store.close()
    place.mkdir(mode=0o711)
    calm = Machine(place, library, machine.seed + 1, disks=False, skewed=False)
    try:
        plan = place / "plan"
        plan.write_text(json.dumps(judged))
        calm.start_serve()
        calm.start_agent(str(plan))
        wait_until(lambda: calm.agent is not None and calm.agent.poll() is not None, calm.said)
        store = Store.open(calm.store_url)
        assert verdicts(store, judged) == disturbed
        store.close()
    finally:
        calm.close()
    return events, count


def run(machine: Machine, names: list[str], pause_s: float) -> None:
    """Have things happen one after the other, while rollouts go on."""
    happen = disturbances(machine)
    machine.start_serve()
    machine.start_agent()
    # Not before the schema is there: a disk that is full while ClickHouse writes a table's definition can
    # leave it empty, and the server then does not start again (docs/running.md).
    wait_until(machine.has_schema, machine.said)
    for number, name in enumerate(names, 1):
        print(number, name, flush=True)
        happen[name]()
        if machine.to_serve.stormy:
            machine.to_serve.cut_all()
        machine.pause(pause_s)
        if number % CALM_EVERY == 0:
            machine.catch_up()
    machine.heal()


def test_whatever_is_killed_acknowledged_events_are_stored_once_and_penalties_are_the_same(
    place: Path, library: Path, seed: int
) -> None:
    machine = Machine(place, library, seed, disks=True, skewed=True)
    try:
        run(machine, ["agent", "store", "connection", "serve", "clock", "spool full", "agent"], 0.5)
        events, judged = check_store(machine)
        print(f"{events} events, {len(judged)} verdicts")
    finally:
        machine.close()


@pytest.mark.slow
def test_a_hundred_kills_full_disks_cut_connections_and_jumping_clocks_lose_and_double_nothing(
    place: Path, library: Path, seed: int
) -> None:
    machine = Machine(place, library, seed, disks=True, skewed=True)
    kills = ["agent", "serve", "store"] * (ROUNDS // 3) + ["agent"]
    more = ["spool full", "store full", "connection", "clock"] * (ROUNDS // 8)
    names = [*kills, *more]
    machine.choose.shuffle(names)
    try:
        run(machine, names, 1.5)
        events, judged = check_against_a_calm_run(machine, place / "calm", library)
        print(
            f"kills {machine.kills}; connections failed {machine.to_serve.failed}, {machine.to_store.failed}"
        )
        print(f"{events} events, {judged} verdicts, {len(read_log(machine.log))} lines")
        assert sum(machine.kills.values()) == ROUNDS
    finally:
        machine.close()


def test_the_clock_that_the_faults_skew_is_the_one_that_programs_see(place: Path) -> None:
    from machine import Clock

    clock = Clock(place)
    clock.shift(40 * DAY_NS)
    asked = [
        "python3",
        "-c",
        "import time; print(time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))",
    ]
    there = subprocess.run(asked, capture_output=True, text=True, env={**os.environ, **clock.environment()})
    here = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert there.returncode == 0, there.stderr
    (wall, boot), (own_wall, own_boot) = (map(int, one.stdout.split()) for one in (there, here))
    assert 40 * DAY_NS - (own_boot - boot) - DAY_NS < wall - own_wall <= 40 * DAY_NS
