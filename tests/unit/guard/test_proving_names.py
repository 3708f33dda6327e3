"""What a policy says of recorded connections whose addresses came from names; attacks on names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from invigilator.guard import attacks, proving
from invigilator.profiles import library
from invigilator.profiles.learning import Connection, Recording
from invigilator.profiles.learning.network import address_bytes
from invigilator.profiles.policy import Policy

TCP, UDP = 6, 17
ZONE = '{name: zone, target: "*.zone.example", ports: [443]}'


def policy(*egress: str) -> Policy:
    rules = "".join(f"  - {rule}\n" for rule in egress)
    given = f"  egress:\n{rules}" if egress else ""
    return library.load_text(f"version: 1\nname: t\nnetwork:\n  default_action: deny\n{given}").policy


def said(of: Policy, asked: set[bytes], *reached: tuple[str, int, int]) -> tuple[str, str]:
    """(state, what was found) of the recorded connections."""
    made = Counter(Connection(address_bytes(address), port, protocol) for address, port, protocol in reached)
    report = cast(Any, SimpleNamespace(rollout_id="r"))
    facts = Recording("r", connections=made, asked=asked)
    [row] = [
        one for one in proving.stated(of, proving.Case(report, facts)) if "recorded connections" in one.what
    ]
    return row.state, row.found


@pytest.fixture(autouse=True)
def leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the node's name servers, which a test cannot have."""

    def lookup(name: str) -> Sequence[str]:
        if name != "a.zone.example":
            raise OSError("no such name")
        return ["8.8.8.8"]

    monkeypatch.setattr(proving, "lookup", lookup)


def test_a_connection_to_where_a_name_below_a_wildcard_leads_is_allowed() -> None:
    assert said(policy(ZONE), {b"A.zone.example"}, ("8.8.8.8", 443, TCP)) == ("proven", "0 denied")


def test_a_connection_that_no_name_was_asked_for_is_denied() -> None:
    assert said(policy(ZONE), set(), ("8.8.8.8", 443, TCP))[0] == "failed"


def test_a_name_opens_its_rules_ports_only() -> None:
    assert said(policy(ZONE), {b"a.zone.example"}, ("8.8.8.8", 22, TCP))[0] == "failed"


def test_an_address_that_a_name_no_longer_leads_to_proves_nothing() -> None:
    state, found = said(policy(ZONE), {b"a.zone.example"}, ("9.9.9.9", 443, TCP))
    assert state == "not shown" and "no longer where a name leads" in found


def test_what_is_denied_is_told_beside_what_cannot_be_shown() -> None:
    reached = ("9.9.9.9", 443, TCP), ("9.9.9.9", 22, TCP)
    state, found = said(policy(ZONE), {b"a.zone.example"}, *reached)
    assert state == "failed" and found.startswith("1 denied") and found.endswith("port 22")


def test_a_question_to_a_name_server_of_then_goes_to_the_guards_own() -> None:
    question = ("203.0.113.9", 53, UDP)
    assert said(policy(ZONE), {b"a.zone.example"}, question)[0] == "proven"
    assert said(policy(), {b"a.zone.example"}, question)[0] == "failed"


def test_names_that_no_rule_hands_out_are_asked_for() -> None:
    found = {one.id for one in attacks.on_names(policy(ZONE))}
    assert found == {"ask attack.invalid", "ask attack-zone.example", f"ask {attacks.LONG}.zone.example"}


def test_where_a_policy_has_no_names_nobody_answers_and_none_is_asked_for() -> None:
    assert not list(attacks.on_names(policy())) and not list(attacks.on_names(library.load("base")))
