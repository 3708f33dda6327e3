"""Egress by name: which names a phase hands out, and the rules of their addresses."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from invigilator.profiles import names, network
from invigilator.profiles.explain import explain
from invigilator.profiles.names import NameRules
from invigilator.profiles.pins import Pins, sort
from invigilator.profiles.policy import EgressRule, Network, Policy
from invigilator.profiles.rules import findings

TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
FILES = EgressRule(name="files", target="files.example.org", ports=[443])
ZONE = EgressRule(name="zone", target="*.example.org", ports=[443, 8443])


def policy(*egress: EgressRule, default: str = "deny") -> Policy:
    return Policy(name="t", network=Network(default_action=default, egress=list(egress)))  # type: ignore[arg-type]


def decide(name: str, *egress: EgressRule, default: str = "deny") -> names.Decision:
    return NameRules(policy(*egress, default=default).network).decide(name)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        *[
            ("a.example.org", True),
            ("a.b.example.org", True),
            ("example.org", False),
            ("xexample.org", False),
        ],
        *[("example.org.evil.net", False), ("*.example.org", False), ("a..example.org", False)],
        *[("a\\046.example.org", False), ("a b.example.org", False), ("", False), (".", False)],
        *[("-a.example.org", False), ("é.example.org", False), ("_x.example.org", True)],
    ],
)
def test_a_wildcard_is_about_what_is_below_its_zone(name: str, allowed: bool) -> None:
    assert decide(name, ZONE).allowed is allowed


@pytest.mark.parametrize(
    "target", ["*", "*.org", "*.", "a.*.org", "*a.example.org", "*.*.example.org", "*.-a.b"]
)
def test_other_wildcards_are_none(target: str) -> None:
    assert not names.is_name(target)


def test_what_is_below_a_wildcard_is_bounded_and_the_refusal_names_the_rule() -> None:
    most = names.BELOW_WILDCARD_MAX_BYTES
    fits, too_long = ".".join(["a" * 31, "b" * 32]), ".".join(["a" * 32, "b" * 32])
    assert len(fits) == most and len(too_long) == most + 1
    assert decide(f"{fits}.example.org", ZONE).allowed
    refused = decide(f"{too_long}.example.org", ZONE)
    assert not refused.allowed and refused.name == "zone"
    assert decide(
        f"{too_long}.example.org", EgressRule(name="it", target=f"{too_long}.example.org"), ZONE
    ).allowed


def test_a_name_denied_before_it_is_allowed_is_not_handed_out() -> None:
    no = EgressRule(name="no", action="deny", target="bad.example.org", protocol="any")
    assert decide("bad.example.org", no, ZONE) == (False, no, False, False, "")
    assert decide("good.example.org", no, ZONE).allowed
    some_ports = no.model_copy(update={"ports": [25]})
    assert decide("bad.example.org", some_ports, ZONE).allowed


def test_names_are_open_where_the_default_or_another_name_server_is() -> None:
    asking = EgressRule(name="dns", target="192.0.2.53", ports=[53], protocol="udp")
    assert decide("any.example.net", FILES, default="allow") == (True, None, False, False, "")
    assert decide("any.example.net", FILES, asking).allowed
    assert decide("any.example.net", FILES).name == "default_action"


def test_the_rules_of_an_address_keep_the_policys_order_whoever_they_are_by() -> None:
    rules = [
        EgressRule(name="no-smtp", action="deny", target="0.0.0.0/0", ports=[25], protocol="any"),
        FILES,
        EgressRule(name="block", target="198.41.0.0/24", ports=[80]),
        ZONE,
    ]
    pins = Pins(policy(*rules), {"files.example.org": ["198.41.0.4"]})
    address = ipaddress.ip_address("198.41.0.4")
    found = [(one.name, one.port_low, one.allow) for one in pins.rules("agent", address)]
    assert found == [
        ("no-smtp", 25, False), ("files", 443, True), ("block", 80, True),
        ("zone", 443, True), ("zone", 8443, True),
    ]  # fmt: skip
    assert {one.prefix for one in pins.rules("agent", address)} == {network.mapped(address)}
    assert {one.length for one in pins.rules("agent", address)} == {128}
    other = ipaddress.ip_address("198.41.0.5")
    assert [one.name for one in pins.rules("agent", other)] == ["no-smtp", "block"]


def test_the_first_answer_stays() -> None:
    pins = Pins(policy(ZONE), {})
    pins.put("a.example.org", 4, [ipaddress.ip_address("198.41.0.4")])
    pins.put("a.example.org", 4, [ipaddress.ip_address("198.41.0.5")])
    assert pins.of("a.example.org", 4) == (ipaddress.ip_address("198.41.0.4"),)
    assert pins.of("a.example.org", 6) is None
    assert pins.rules("agent", ipaddress.ip_address("198.41.0.5")) == []


@pytest.mark.parametrize(
    "address",
    [
        *[
            "10.0.0.1",
            "127.0.0.1",
            "0.0.0.0",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
        ],
        *["::1", "::", "fe80::1", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "ff02::1"],
        *["::a9fe:a9fe", "192.88.99.1", "168.63.129.16", "3fff::1", "5f00::1"],
    ],
)
def test_addresses_of_the_inside_are_handed_out_only_where_the_rule_says_so(address: str) -> None:
    family = ipaddress.ip_address(address).version
    assert sort([address], family, private=False).granted == ()
    assert sort([address], family, private=False).refused == (ipaddress.ip_address(address),)
    assert sort([address], family, private=True).granted == (ipaddress.ip_address(address),)


def test_a_mapped_address_is_never_handed_out_and_a_family_never_stands_for_the_other() -> None:
    for private in (False, True):
        assert sort(["::ffff:198.41.0.4"], 6, private=private).granted == ()
        assert sort(["198.41.0.4", "2001:4860:4860::8888"], 6, private=private).granted == (
            ipaddress.ip_address("2001:4860:4860::8888"),
        )
    many = [f"198.41.0.{n}" for n in range(40)]
    assert len(sort(many, 4, private=False).granted) == names.ADDRESSES_MAX


def test_a_rule_behind_a_wildcard_that_covers_it_never_decides() -> None:
    covered = EgressRule(name="files", action="deny", target="Files.example.org.", ports=[443])
    found = [one for one in findings(policy(ZONE, covered)) if "never decides" in one.message]
    assert [(one.severity, one.where) for one in found] == [("error", ("network", "egress", 1))]
    assert not [one for one in findings(policy(covered, ZONE)) if "never decides" in one.message]


def test_explain_knows_wildcards() -> None:
    said = explain(policy(ZONE), "agent", "connect", "a.example.org:8443")
    assert (said.verdict, said.rule) == ("allowed", "egress rule zone")
    assert explain(policy(ZONE), "agent", "connect", "a.example.net:8443").verdict == "denied"
    asked: list[str] = []
    explain(policy(ZONE), "agent", "connect", "198.41.0.4:443", resolve=lambda name: asked.append(name) or [])  # type: ignore[func-returns-value]
    assert asked == []


def test_a_wildcard_alone_needs_a_link_and_no_address_at_the_start() -> None:
    def nobody(name: str) -> list[str]:
        raise AssertionError(name)

    rules = network.compile(policy(ZONE), "agent", nobody)
    assert rules.needs_link and rules.hosts == {}
    assert not rules.decide("198.41.0.4", 443, TCP)[0]
