"""Which own addresses and ports may be taken: compiled, explained, compared, checked, and in the versions
only where it is used."""

from __future__ import annotations

import ipaddress
import socket

import jsonschema
import pytest

from invigilator.guard.cli.run import _without_network
from invigilator.profiles import canonical, diff, explain, library, network, schema, source
from invigilator.profiles.errors import PolicyError
from invigilator.profiles.policy import Policy

TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
MINE = """version: 1
name: mine
extends: swe-task
network:
  bind:
    - {name: local, addresses: [127.0.0.0/8, "::1"], ports: [8080]}
    - {name: service-ports, action: deny, ports: [8080, 8081, 5432], protocol: any}
phases:
  verify: {network: {default_bind: deny, bind: [{name: chosen, ports: [0]}]}}
"""


@pytest.fixture
def mine() -> library.Loaded:
    return library.load_text(MINE, "mine.yaml")


def said(body: str) -> Policy:
    return library.load_text(f"version: 1\nname: x\nextends: swe-task\nnetwork: {body}\n").policy


def test_rules_are_compiled_an_address_and_a_range_of_ports_each(mine: library.Loaded) -> None:
    rules = network.compile(mine.policy, "agent")
    every, mapped = bytes(16), ipaddress.ip_address("::ffff:127.0.0.0").packed
    assert rules.default_bind
    assert rules.binds == (
        (mapped, 104, 8080, 8080, TCP, True, "local"),
        (ipaddress.ip_address("::1").packed, 128, 8080, 8080, TCP, True, "local"),
        (every, 0, 5432, 5432, 0, False, "service-ports"),
        (every, 0, 8080, 8081, 0, False, "service-ports"),
    )
    verify = network.compile(mine.policy, "verify")
    assert (verify.default_bind, verify.binds) == (False, ((every, 0, 0, 0, TCP, True, "chosen"),))
    assert network.compile(mine.policy, "setup", lambda _: ["198.41.0.4"]).binds == rules.binds


def test_without_rules_and_in_observe_every_port_may_be_taken(mine: library.Loaded) -> None:
    observed = mine.policy.model_copy(update={"mode": "observe"})
    for policy in (library.load("no-network"), observed):
        rules = network.compile(policy, "verify")
        assert rules.default_bind and not rules.binds


@pytest.mark.parametrize(
    ("target", "phase", "verdict", "rule", "line"),
    [
        ("127.0.0.1:8080", "agent", "allowed", "bind rule local", 6),
        ("[::1]:8080", "setup", "allowed", "bind rule local", 6),
        ("127.0.0.1:8080/udp", "agent", "denied", "bind rule service-ports", 7),
        ("0.0.0.0:8080", "agent", "denied", "bind rule service-ports", 7),
        ("[::]:5432", "agent", "denied", "bind rule service-ports", 7),
        ("0.0.0.0:9000", "agent", "allowed", "network.default_bind: allow", None),
        ("127.0.0.1:0", "verify", "allowed", "bind rule chosen", 9),
        ("127.0.0.1:0/udp", "verify", "denied", "network.default_bind: deny", 9),
    ],
)
def test_explain_names_the_rule_and_its_line(
    mine: library.Loaded, target: str, phase: str, verdict: str, rule: str, line: int | None
) -> None:
    answer = explain.explain(mine, phase, "bind", target)  # type: ignore[arg-type]
    assert (answer.verdict, answer.rule, answer.tier) == (verdict, rule, "cgroup")
    assert answer.place.line == line if line else str(answer.place) == "default"


def test_explain_asks_for_an_address(mine: library.Loaded) -> None:
    with pytest.raises(ValueError, match="write address:port"):
        explain.explain(mine, "agent", "bind", "localhost:80")


def test_diff_says_what_may_be_taken(mine: library.Loaded) -> None:
    found = {str(change) for change in diff.diff(library.load("swe-task"), mine.policy)}
    assert found == {
        "- taking port 5432, 8080-8081 of any address, in phases setup and agent",
        "- taking addresses and ports that no bind rule names, in phase verify",
    }
    back = {str(change) for change in diff.diff(mine.policy, library.load("swe-task"))}
    assert {text.replace("+", "-") for text in back} == found


def test_only_a_policy_that_uses_them_has_other_versions() -> None:
    plain = canonical.policy_versions(library.load("swe-task"))
    assert canonical.policy_versions(said("{default_bind: allow, bind: []}")) == plain
    for body in ("{default_bind: deny}", "{bind: [{name: a, action: deny, ports: [80]}]}"):
        versions = canonical.policy_versions(said(body))
        assert versions.confinement != plain.confinement
        assert (versions.detection, versions.penalty) == (plain.detection, plain.penalty)


def test_a_run_without_network_keeps_its_rules_for_binds(mine: library.Loaded) -> None:
    closed = _without_network(mine.policy)
    for phase in ("setup", "agent", "verify"):
        assert network.network_of(closed, phase).egress == []  # type: ignore[arg-type]
        assert network.binds_of(closed, phase) == network.binds_of(mine.policy, phase)  # type: ignore[arg-type]
    assert not network.needs_link(closed)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            "[{name: a, action: deny, ports: [80, 81]}, {name: b, addresses: [127.0.0.1], ports: [80]}]",
            "`b` never decides: `a` stands before it and covers it",
        ),
        ("[{name: a, action: deny, ports: [1]}, {name: a, ports: [2]}]", "two rules are named `a`"),
        ("[{name: a, addresses: [files.example.org]}]", "`files.example.org` is no address"),
        ("[{name: a, ports: [65536]}]", "`65536` is refused"),
        ("[{name: a, target: 127.0.0.1}]", "unknown key `target`"),
    ],
)
def test_what_contradicts_or_cannot_be_read_is_refused(rules: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        said(f"{{bind: {rules}}}")


@pytest.mark.parametrize(
    "rules",
    [
        "[{name: a, action: deny, addresses: [127.0.0.1], ports: [80]}, {name: b, ports: [80]}]",
        "[{name: a, action: deny, ports: [80]}, {name: b, ports: [80], protocol: any}]",
    ],
)
def test_a_rule_that_decides_something_is_kept(rules: str) -> None:
    assert len(said(f"{{bind: {rules}}}").network.bind) == 2


def test_rules_that_say_what_holds_anyway_are_warned_of() -> None:
    loaded = library.load_text("version: 1\nname: x\nnetwork: {bind: [{name: web, ports: [80]}]}\n")
    (warning,) = [one for one in loaded.warnings if "bind" in one.message]
    assert "change nothing: `default_bind` is allow too" in warning.message


def test_the_schema_knows_them() -> None:
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    assert validator.is_valid(source.plain(source.parse(MINE, "mine.yaml")))
    wrong = MINE.replace('addresses: [127.0.0.0/8, "::1"]', "addresses: 127.0.0.1")
    assert not validator.is_valid(source.plain(source.parse(wrong, "mine.yaml")))
