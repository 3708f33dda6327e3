"""A policy's filter as the profile that Docker takes: the same refusals, in the OCI specification's words."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

import pytest

from invigilator.profiles import library, oci, seccomp
from invigilator.profiles.policy import Policy

NATIVE = oci.ARCHITECTURES.get(os.uname().machine)
pytestmark = pytest.mark.skipif(NATIVE is None, reason="no OCI name of this machine is known here")


def rules_for(name: str, policy: Policy) -> list[dict[str, Any]]:
    return [rule for rule in oci.profile(policy, "agent")["syscalls"] if name in rule["names"]]


def test_every_refusal_of_the_filter_is_a_rule_and_nothing_else_is() -> None:
    policy = library.load("swe-task")
    made = seccomp.build(policy, "agent", userns_sysctl=False)
    refused = [one for one in made.refusals if not one.call.startswith("any call by ABI")]
    rules = oci.profile(policy, "agent")["syscalls"]
    assert [(rule["names"][0], rule["errnoRet"]) for rule in rules] == [
        (one.call.partition("(")[0], one.errno) for one in refused
    ]
    assert all(rule["action"] == "SCMP_ACT_ERRNO" for rule in rules)
    assert json.loads(json.dumps(rules)) == rules


def test_arguments_are_masked_as_libseccomp_reads_them() -> None:
    policy = Policy(name="test")
    (clone,) = rules_for("clone", policy)
    flag = seccomp.CLONE_NEWUSER
    assert clone["args"] == [{"index": 0, "op": "SCMP_CMP_MASKED_EQ", "value": flag, "valueTwo": flag}]
    (clone3,) = rules_for("clone3", policy)
    assert clone3["errnoRet"] == errno.ENOSYS and "args" not in clone3


def test_own_rules_keep_their_action_and_conditions() -> None:
    args = [{"index": 1, "op": "SCMP_CMP_EQ", "value": 7}]
    raw = [
        {"names": ["personality"], "action": "SCMP_ACT_LOG"},
        {"names": ["fcntl"], "action": "SCMP_ACT_ERRNO", "errno": "EACCES", "args": args},
    ]
    policy = Policy.model_validate({"name": "test", "seccomp": {"raw": raw}})
    assert rules_for("personality", policy) == [{"names": ["personality"], "action": "SCMP_ACT_LOG"}]
    (fcntl,) = rules_for("fcntl", policy)
    assert fcntl["errnoRet"] == errno.EACCES and fcntl["args"] == [{**args[0], "valueTwo": 0}]


def test_other_abis_are_there_where_the_policy_allows_them() -> None:
    assert oci.profile(Policy(name="test"), "agent")["architectures"] == [NATIVE]
    allowing = Policy.model_validate({"name": "test", "syscalls": {"foreign_abi": "allow"}})
    assert len(oci.profile(allowing, "agent")["architectures"]) > 1


def test_an_observing_policy_refuses_nothing() -> None:
    assert oci.profile(Policy(name="test", mode="observe"), "agent")["syscalls"] == []
