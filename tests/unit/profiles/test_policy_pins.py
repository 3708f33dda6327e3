"""Rules of a phase once names below its wildcards were asked for."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest

from invigilator.profiles import library, network, pins
from invigilator.profiles.policy import Policy

TCP = 6
LEADS = {"a.zone.example": ["8.8.8.8"], "in.zone.example": ["10.0.0.1"], "a.own.example": ["10.0.0.2"]}


def policy(egress: str, more: str = "") -> Policy:
    text = f"version: 1\nname: t\n{more}network:\n  default_action: deny\n  egress:\n{egress}"
    return library.load_text(text).policy


ZONE = '  - {name: zone, target: "*.zone.example", ports: [443]}\n'
OWN = '  - {name: own, target: "*.own.example", ports: [443], private: true}\n'


def resolve(name: str) -> Sequence[str]:
    if name not in LEADS:
        raise OSError("no such name")
    return LEADS[name]


@pytest.mark.parametrize(
    ("names", "address", "port", "allowed"),
    [
        (["a.zone.example"], "8.8.8.8", 443, True),
        (["a.zone.example"], "8.8.8.8", 80, False),
        ([], "8.8.8.8", 443, False),
        (["gone.zone.example", "a.zone.example"], "8.8.8.8", 443, True),
        (["zone.example", "stranger.example"], "8.8.8.8", 443, False),
        (["in.zone.example"], "10.0.0.1", 443, False),
        (["a.own.example"], "10.0.0.2", 443, True),
        (["a.own.example"], "127.0.0.1", 9, True),
    ],
)
def test_a_name_below_a_wildcard_opens_where_it_leads(
    names: list[str], address: str, port: int, allowed: bool
) -> None:
    rules = pins.asked(policy(ZONE + OWN), "agent", names, resolve)
    assert rules.decide(address, port, TCP)[0] is allowed


def test_a_denial_before_the_wildcard_holds_for_where_its_names_lead() -> None:
    denial = "  - {name: never, target: 8.8.8.0/24, action: deny}\n"
    rules = pins.asked(policy(denial + ZONE), "agent", ["a.zone.example"], resolve)
    assert rules.decide("8.8.8.8", 443, TCP) == (False, "never")


def test_where_nothing_is_enforced_a_name_closes_nothing() -> None:
    denial = "  - {name: never, target: 8.8.8.0/24, action: deny}\n"
    rules = pins.asked(policy(denial + ZONE, "mode: observe\n"), "agent", ["a.zone.example"], resolve)
    assert rules.decide("8.8.8.8", 443, TCP)[0]


@pytest.mark.parametrize(
    ("name", "address", "port", "allowed"),
    [
        ("a.zone.example", "9.9.9.9", 443, True),
        ("a.zone.example", "9.9.9.9", 80, False),
        ("a.zone.example", "10.0.0.1", 443, False),
        ("b.own.example", "10.0.0.1", 443, True),
        ("stranger.example", "9.9.9.9", 443, False),
    ],
)
def test_what_a_name_would_open_is_known_whatever_it_leads_to_now(
    name: str, address: str, port: int, allowed: bool
) -> None:
    one = ipaddress.ip_address(address)
    rules = pins.leading(policy(ZONE + OWN), "agent", name, one)
    assert rules.decide(network.mapped(one), port, TCP)[0] is allowed
