"""Every policy of the library loads; every row of the attack battery is refused, and recorded as refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from battery import LIBRARY, TIERS, Attack, Outcome, attacks, policy_of, run, told_of

from invigilator.sandbox import apparmor
from invigilator.sandbox.process import ProcessBackend

RESULTS = Path("/run/out/results")
"""What `test_document` of this machine makes the table of."""
Run = Callable[[str, tuple[str, ...]], dict[str, Outcome]]
ROWS = {one.id: one for one in attacks()}
ALL = tuple(TIERS)


@pytest.fixture(scope="session")
def outcomes(backend: ProcessBackend) -> Run:
    """The battery under a policy with some tiers, run once."""
    subprocess.run(["busybox", "modprobe", "vsock"], check=False)

    @cache
    def run_once(policy: str, tiers: tuple[str, ...]) -> dict[str, Outcome]:
        asked = policy_of(policy)
        found = run(backend, asked, frozenset(tiers), [one for one in ROWS.values() if one.concerns(asked)])
        with RESULTS.open("a") as file:
            for name, one in found.items():
                row = {"policy": policy, "tiers": tiers, "attack": name, "worked": one.worked}
                file.write(json.dumps({**row, "told": told_of(one)}) + "\n")
        return dict(found)

    return run_once


def rows_of(policy: str) -> list[Attack]:
    asked = policy_of(policy)
    return [one for one in ROWS.values() if one.concerns(asked)]


@pytest.mark.parametrize("name", [*LIBRARY, "strict"])
def test_a_policy_of_the_library_loads_in_every_phase(backend: ProcessBackend, name: str) -> None:
    profiles = backend._shared.profiles
    names = profiles.take(policy_of(name))
    try:
        assert set(names) == {"setup", "agent", "verify"}
        assert profiles.observed(names) == "enforce"
        assert {apparmor.modes()[one] for one in names.values()} == {"enforce"}
    finally:
        profiles.give_back(names)


@pytest.mark.parametrize("attack", rows_of("strict"), ids=lambda one: one.id)
def test_an_attack_is_refused_by_the_whole_sandbox(outcomes: Run, attack: Attack) -> None:
    found = outcomes("strict", ALL)[attack.id]
    assert not found.worked, found.said


@pytest.mark.parametrize("attack", rows_of("strict"), ids=lambda one: one.id)
def test_an_attack_works_where_nothing_refuses_it(outcomes: Run, attack: Attack) -> None:
    """Else its failing under a tier would say nothing of the tier."""
    found = outcomes("strict", ())[attack.id]
    assert found.worked == (attack.always is None), found.said


@pytest.mark.parametrize(
    "attack", [one for one in rows_of("strict") if "apparmor" in one.tiers], ids=lambda one: one.id
)
def test_apparmor_alone_refuses_it_and_says_so(outcomes: Run, attack: Attack) -> None:
    found = outcomes("strict", ("apparmor",))[attack.id]
    assert not found.worked, found.said
    assert told_of(found) or attack.once or attack.always, found.said


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["seccomp", "mount", "capabilities"])
@pytest.mark.parametrize("attack", rows_of("strict"), ids=lambda one: one.id)
def test_another_tier_alone_refuses_what_is_its_own(outcomes: Run, attack: Attack, tier: str) -> None:
    found = outcomes("strict", (tier,))[attack.id]
    refused = tier in attack.tiers or attack.always is not None
    assert found.worked != refused, found.said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "attack"),
    [pytest.param(name, one, id=f"{name}-{one.id}") for name in LIBRARY for one in rows_of(name)],
)
def test_every_policy_of_the_library_refuses_what_it_means_to(
    outcomes: Run, policy: str, attack: Attack
) -> None:
    assert not outcomes(policy, ALL)[attack.id].worked
    alone = outcomes(policy, ("apparmor",))[attack.id]
    if "apparmor" in attack.tiers:
        assert not alone.worked, alone.said
        assert told_of(alone) or attack.once or attack.always, alone.said


def test_complain_mode_refuses_nothing_and_tells(backend: ProcessBackend) -> None:
    asked = policy_of("strict")
    watching = asked.model_copy(update={"mode": "observe"})
    chosen = [
        one for one in rows_of("strict") if one.id in ("reward_write", "grader_read", "program_overwrite")
    ]
    for name, found in run(backend, watching, frozenset(ALL), chosen).items():
        assert found.worked, (name, found.said)
        assert not told_of(found)
        assert any(one.allowed for one in found.records), (name, found.records)
