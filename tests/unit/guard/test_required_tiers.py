"""No sandbox starts where a tier that its policy requires is missing, whatever is in its place."""

from __future__ import annotations

import pytest

from invigilator.guard.opening import RolloutError, require_tiers
from invigilator.profiles.policy import Policy

WHOLE = {"seccomp": "enforce", "cgroup": "enforce", "apparmor": "enforce", "network": "enforce"}


@pytest.mark.parametrize(
    ("state", "tier"),
    [("complain", "apparmor"), ("absent", "apparmor"), ("off", "seccomp"), ("absent", "cgroup")],
)
def test_what_does_not_enforce_is_missing(state: str, tier: str) -> None:
    policy = Policy(name="p", require=["seccomp", "cgroup", "apparmor"])
    require_tiers(policy, WHOLE)
    with pytest.raises(RolloutError, match=f"policy p requires {tier}, which is not in force here"):
        require_tiers(policy, {**WHOLE, tier: state})


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_what_nobody_speaks_of_is_missing(mode: str) -> None:
    with pytest.raises(RolloutError, match="requires lsm"):
        require_tiers(Policy(name="p", mode=mode, require=["lsm"]), WHOLE)  # type: ignore[arg-type]


def test_an_observing_policy_requires_that_a_tier_is_there_and_not_that_it_refuses() -> None:
    policy = Policy(name="p", mode="observe", require=["network", "cgroup", "apparmor"])
    watching = {"network": "off", "cgroup": "enforce", "apparmor": "complain"}
    require_tiers(policy, watching)
    for tier in ("apparmor", "cgroup"):
        with pytest.raises(RolloutError, match=f"requires {tier},"):
            require_tiers(policy, {**watching, tier: "absent"})
