"""Egress rules → flat rules."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invigilator.profiles import library, network, reach
from invigilator.profiles.network import NetworkError
from invigilator.profiles.policy import EgressRule, Network, PhaseRules, Policy

TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP


def no_names(name: str) -> Sequence[str]:
    raise OSError(f"nobody knows {name}")


def policy(*egress: EgressRule, default: str = "deny") -> Policy:
    return Policy(name="t", network=Network(default_action=default, egress=list(egress)))  # type: ignore[arg-type]


def test_an_ipv4_block_becomes_a_mapped_prefix_and_neighbouring_ports_a_range() -> None:
    rule = EgressRule(name="a", target="192.0.2.0/24", ports=[81, 80, 443, 80])
    found = network.compile(policy(rule), "agent", no_names).rules[:2]
    prefix = ipaddress.ip_address("::ffff:192.0.2.0").packed
    assert found == ((prefix, 120, 80, 81, TCP, True, "a"), (prefix, 120, 443, 443, TCP, True, "a"))


def test_no_ports_and_any_protocol_mean_all() -> None:
    rule = EgressRule(name="a", target="2001:db8::/32", protocol="any", action="deny")
    (first, *_) = network.compile(policy(rule), "agent", no_names).rules
    assert first[1:] == (32, 0, 65535, 0, False, "a")


def test_every_address_of_a_name_gets_a_rule_and_a_line_for_hosts() -> None:
    rule = EgressRule(name="a", target="files.example.org", ports=[443])
    addresses = ["198.41.0.4", "2001:4860:4860::8888"]
    found = network.compile(policy(rule), "agent", lambda _: addresses)
    assert [entry.prefix for entry in found.rules[:2]] == [
        network.mapped(ipaddress.ip_address(address)) for address in addresses
    ]
    assert found.hosts == {"files.example.org": tuple(addresses)}


@pytest.mark.parametrize(
    "address",
    [
        *["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "127.0.0.1", "0.0.0.0", "224.0.0.1"],
        *["169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"],
        *["fe80::1", "fe80::1%eth0", "fc00::1", "::1", "ff02::1", "fd00:ec2::254", "2001:db8::1", "::"],
    ],
)
def test_a_name_that_leads_inside_is_refused_unless_the_rule_says_so(address: str) -> None:
    rule = EgressRule(name="a", target="evil.example.org")
    with pytest.raises(NetworkError, match="no public address"):
        network.compile(policy(rule), "agent", lambda _: ["198.41.0.4", address])
    meant = rule.model_copy(update={"private": True})
    assert len(network.compile(policy(meant), "agent", lambda _: [address]).rules) == 3


def test_a_name_without_an_address_is_an_error_that_names_the_rule() -> None:
    with pytest.raises(NetworkError, match=r"`packages`: `gone.example.org` does not resolve"):
        network.compile(policy(EgressRule(name="packages", target="gone.example.org")), "agent", no_names)


def test_the_first_rule_that_matches_decides_and_loopback_comes_after_the_policys_own() -> None:
    rules = [
        EgressRule(name="no-debug", action="deny", target="127.0.0.1", ports=[9229]),
        EgressRule(name="inner", action="deny", target="10.1.0.0/16", protocol="any"),
        EgressRule(name="outer", target="10.0.0.0/8", protocol="any"),
    ]
    found = network.compile(policy(*rules), "agent", no_names)
    assert found.decide("127.0.0.1", 9229, TCP) == (False, "no-debug")
    assert found.decide("127.0.0.1", 80, TCP) == (True, "loopback")
    assert found.decide("::1", 80, UDP) == (True, "loopback")
    assert found.decide("10.1.2.3", 53, UDP) == (False, "inner")
    assert found.decide("::ffff:10.2.2.3", 53, UDP) == (True, "outer")
    assert found.decide("11.0.0.1", 53, UDP) == (False, "default_action")
    shared = network.compile(policy(), "agent", no_names, own_loopback=False)
    assert shared.decide("127.0.0.1", 80, TCP) == (False, "default_action")


def test_a_link_is_needed_only_where_something_may_leave() -> None:
    loopback = EgressRule(name="l", target="127.0.0.0/8")
    assert not network.needs_link(policy())
    assert not network.needs_link(policy(loopback, EgressRule(name="n", action="deny", target="10.0.0.0/8")))
    assert network.needs_link(policy(EgressRule(name="a", target="192.0.2.1")))
    setup = Policy(name="t", phases={"setup": PhaseRules(network=Network(default_action="allow"))})
    assert network.needs_link(setup)
    assert network.needs_link(setup, "setup")
    assert not network.needs_link(setup, "agent")
    assert not network.needs_link(library.load("no-network"))


def test_observe_lets_everything_out_but_still_states_its_rules() -> None:
    watching = policy().model_copy(update={"mode": "observe"})
    assert network.compile(watching, "agent", no_names).default_allow
    assert not network.stated(watching, "agent", no_names).default_allow


@pytest.mark.parametrize(
    ("address", "port", "protocol", "allowed"),
    [
        ("93.184.216.34", 443, TCP, True),
        ("93.184.216.34", 443, UDP, True),
        ("93.184.216.34", 22, TCP, False),
        ("9.9.9.9", 53, UDP, True),
        ("10.0.0.2", 53, UDP, False),
        ("2606:4700::1111", 443, TCP, True),
        *[
            (inside, 443, TCP, False)
            for inside in ("10.0.0.1", "172.31.0.1", "192.168.0.1", "169.254.169.254")
        ],
        *[
            (inside, 443, TCP, False)
            for inside in ("100.100.100.200", "fd00:ec2::254", "fe80::1", "2002:a00:1::1")
        ],
        *[
            (inside, 443, TCP, False)
            for inside in ("::ffff:10.0.0.1", "64:ff9b::a00:1", "0.0.0.0", "255.255.255.255")
        ],
    ],
)
def test_web_browsing_reaches_the_public_web_and_nothing_inside(
    address: str, port: int, protocol: int, allowed: bool
) -> None:
    rules = network.compile(library.load("web-browsing"), "agent", no_names)
    assert rules.decide(address, port, protocol)[0] is allowed


BLOCK = st.one_of(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)).map(
        lambda t: ipaddress.ip_network(t, strict=False)
    ),
    st.tuples(st.integers(2**125, 2**126), st.integers(96, 128)).map(
        lambda t: ipaddress.ip_network((t[0], t[1]), strict=False)
    ),
)
RULE = st.builds(
    EgressRule,
    name=st.uuids().map(str),
    action=st.sampled_from(["allow", "deny"]),
    target=BLOCK.map(str),
    ports=st.lists(st.integers(1, 65535), max_size=2),
    protocol=st.sampled_from(["tcp", "udp", "any"]),
)
NETWORK = st.builds(
    Network, default_action=st.sampled_from(["allow", "deny"]), egress=st.lists(RULE, max_size=4)
)


@given(NETWORK, NETWORK, st.integers(0, 2**32 - 1), st.integers(1, 65535), st.sampled_from([TCP, UDP]))
def test_two_networks_without_a_difference_decide_the_same_everywhere(
    one: Network, two: Network, number: int, port: int, protocol: int
) -> None:
    found = reach.differences(one, two)
    rules = [
        network.compile(Policy(name="t", network=each), "agent", no_names, own_loopback=False)
        for each in (one, two)
    ]
    edges = [rule.prefix for each in rules for rule in each.rules]
    for address in [ipaddress.ip_address(number).compressed, *edges]:
        was, now = (each.decide(address, port, protocol)[0] for each in rules)
        if was != now:
            assert any(difference.opened is now for difference in found)
    assert reach.differences(one, one) == []
