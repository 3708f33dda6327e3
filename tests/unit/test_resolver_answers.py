"""What becomes of a sandbox's questions: the agent's decisions, without sockets and kernel."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invigilator.profiles.names import BELOW_WILDCARD_MAX_NAMES
from invigilator.profiles.network import IpAddress, NetRule, address_of, mapped
from invigilator.profiles.policy import EgressRule, Network, PhaseName, PhaseRules, Policy
from invigilator.sandbox.base import LimitHit, NameEvents
from invigilator.sandbox.resolver import keeper, upstream
from invigilator.sandbox.resolver.answers import PHASES, REFUSALS_MAX, Answer, Answers

FILES = EgressRule(name="files", target="files.example.org", ports=[443])
ZONE = EgressRule(name="zone", target="*.example.org", ports=[443])
REFUSE, LOOK, NOTHING = Answer("refuse"), Answer("look"), Answer("have")


@dataclass
class Told:
    """What the agent did, in order."""

    done: list[tuple[object, ...]] = field(default_factory=list)
    limits: list[LimitHit] = field(default_factory=list)
    fails: bool = False

    def pin(self, phase: PhaseName, address: bytes, rules: Sequence[NetRule]) -> None:
        if self.fails:
            raise RuntimeError("no room")
        self.done.append(("pin", phase, address, tuple(rule.name for rule in rules)))

    def refused(self, phase: PhaseName, name: str, rule: str) -> None:
        self.done.append(("refused", phase, name, rule))

    def admit(self, name: str, addresses: Sequence[IpAddress]) -> None:
        self.done.append(("admit", name, *map(str, addresses)))


def made(policy: Policy, hosts: dict[str, list[str]] | None = None) -> tuple[Answers, Told]:
    told = Told()
    answers = Answers(policy, hosts or {}, told.admit)
    answers.events = NameEvents(told.pin, told.refused, told.limits.append)
    answers.phase = "agent"
    return answers, told


def policy(*egress: EgressRule, **phases: PhaseRules) -> Policy:
    return Policy(name="t", network=Network(egress=list(egress)), phases=phases)  # type: ignore[arg-type]


def raw(address: str) -> bytes:
    return mapped(address_of(address))


def test_an_address_is_in_force_before_it_is_handed_out_and_once() -> None:
    answers, told = made(policy(ZONE))
    assert answers.ask("a.example.org", 4) == LOOK and told.done == []
    assert answers.found("a.example.org", 4, ["198.41.0.4"]) == Answer("have", ("198.41.0.4",))
    # Equal as the phases' networks are here, each has its pins for itself.
    pins = [("pin", phase, raw("198.41.0.4"), ("zone",)) for phase in PHASES]
    assert told.done == [("admit", "a.example.org", "198.41.0.4"), *pins]
    assert answers.ask("a.example.org", 4) == Answer("have", ("198.41.0.4",))
    assert len(told.done) == 4


def test_what_the_name_leads_to_later_changes_nothing() -> None:
    answers, told = made(policy(ZONE))
    answers.found("a.example.org", 4, ["198.41.0.4"])
    assert answers.found("a.example.org", 4, ["198.41.0.66"]) == Answer("have", ("198.41.0.4",))
    assert answers.ask("a.example.org", 4) == Answer("have", ("198.41.0.4",))
    assert {one[2] for one in told.done if one[0] == "pin"} == {raw("198.41.0.4")}


def test_names_of_the_policy_have_the_addresses_of_the_start() -> None:
    answers, told = made(policy(FILES), {"files.example.org": ["198.41.0.4"]})
    assert answers.ask("files.example.org", 4) == Answer("have", ("198.41.0.4",))
    assert answers.ask("files.example.org", 6) == NOTHING
    assert told.done == []  # in force since then
    both, told = made(policy(FILES, ZONE), {"files.example.org": ["198.41.0.4"]})
    assert both.ask("files.example.org", 4) == Answer("have", ("198.41.0.4",))
    assert told.done[-1] == ("pin", "verify", raw("198.41.0.4"), ("files", "zone"))


def test_a_name_that_leads_inside_is_refused_by_its_rule_and_nothing_is_pinned() -> None:
    answers, told = made(policy(ZONE))
    assert answers.found("a.example.org", 4, ["169.254.169.254"]) == REFUSE
    assert told.done == [("refused", "agent", "a.example.org", "zone")]
    # Beside public ones the private ones are left out, and told of.
    assert answers.found("b.example.org", 4, ["10.0.0.1", "198.41.0.4"]) == Answer("have", ("198.41.0.4",))
    assert ("refused", "agent", "b.example.org", "zone") in told.done
    assert not any(one[0] == "pin" and one[2] == raw("10.0.0.1") for one in told.done)
    meant, _ = made(policy(ZONE.model_copy(update={"private": True})))
    assert meant.found("a.example.org", 4, ["10.0.0.1"]) == Answer("have", ("10.0.0.1",))


def test_ipv6_is_handed_out_alike() -> None:
    answers, told = made(policy(ZONE))
    found = answers.found("a.example.org", 6, ["2001:4860:4860::8888", "::ffff:198.41.0.4", "fe80::1"])
    assert found == Answer("have", ("2001:4860:4860::8888",))
    assert ("pin", "setup", raw("2001:4860:4860::8888"), ("zone",)) in told.done


def test_other_names_are_refused_in_the_phases_that_do_not_allow_them() -> None:
    setup = PhaseRules(network=Network(egress=[ZONE]))
    answers, told = made(policy(FILES, setup=setup))
    assert answers.ask("a.example.org", 4) == REFUSE
    assert answers.ask("a.example.org", 4) == REFUSE
    answers.phase = "setup"
    assert answers.ask("a.example.org", 4) == LOOK
    answers.found("a.example.org", 4, ["198.41.0.4"])
    assert told.done == [
        ("refused", "agent", "a.example.org", "default_action"),
        ("admit", "a.example.org", "198.41.0.4"),
        ("pin", "setup", raw("198.41.0.4"), ("zone",)),
    ]
    answers.phase = "agent"
    assert answers.found("a.example.org", 4, ["198.41.0.4"]) == REFUSE


def test_questions_for_what_is_no_address_go_nowhere() -> None:
    answers, _ = made(policy(ZONE))
    assert answers.ask("a.example.org", 0) == NOTHING
    assert answers.ask("a.example.net", 0) == REFUSE


def test_an_open_phase_answers_all_names_and_pins_none() -> None:
    answers, told = made(policy(FILES, setup=PhaseRules(network=Network(default_action="allow"))))
    answers.phase = "setup"
    assert answers.ask("any.example.net", 4) == LOOK
    assert answers.found("any.example.net", 4, ["198.41.0.4"]) == Answer("have", ("198.41.0.4",))
    assert told.done == []


def test_names_under_a_wildcard_are_counted() -> None:
    answers, told = made(policy(ZONE))
    for number in range(BELOW_WILDCARD_MAX_NAMES):
        assert answers.ask(f"n{number}.example.org", 4) == LOOK
    assert answers.ask("more.example.org", 4) == REFUSE
    assert answers.ask("n0.example.org", 4) == LOOK
    assert told.done == [("refused", "agent", "more.example.org", "zone")]
    assert told.limits == [LimitHit("names", BELOW_WILDCARD_MAX_NAMES, BELOW_WILDCARD_MAX_NAMES)]


def test_refusals_are_told_once_a_name_and_not_without_end() -> None:
    answers, told = made(policy(FILES))
    for number in range(REFUSALS_MAX + 50):
        assert answers.ask(f"n{number}.example.net", 4) == REFUSE
    assert len(told.done) == REFUSALS_MAX and len(told.limits) == 1


def test_what_cannot_be_put_in_force_is_not_handed_out() -> None:
    answers, told = made(policy(ZONE))
    told.fails = True
    assert answers.found("a.example.org", 4, ["198.41.0.4"]) == REFUSE
    told.fails = False
    assert answers.ask("a.example.org", 4) == Answer("have", ("198.41.0.4",))
    unwatched = Answers(policy(ZONE), {}, told.admit)
    unwatched.phase = "agent"
    assert unwatched.found("b.example.org", 4, ["198.41.0.4"]) == REFUSE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["sandbox", "n", "name", "family", "found", "limit"]), inner)
    ),
)


@given(
    JSON | st.fixed_dictionaries({"sandbox": JSON, "n": JSON, "name": JSON, "family": JSON, "found": JSON})
)
def test_what_the_process_says_is_a_question_or_refused(said: object) -> None:
    try:
        told = keeper._read(json.dumps(said).encode())
    except keeper._ProtocolError:
        return
    assert told.number is None or (len(told.name) <= keeper.TEXT_MAX and told.family in (0, 4, 6))
    assert all(address_of(one) for one in told.found or ())


@given(st.binary(max_size=99))
def test_other_bytes_of_the_process_are_refused(data: bytes) -> None:
    with contextlib.suppress(keeper._ProtocolError):
        assert isinstance(keeper._read(data).sandbox, int)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []), ("192.0.2.1", ["192.0.2.1:53"]), ("::1", ["[::1]:53"]),
        ("127.0.0.1:5353, [::1]:99", ["127.0.0.1:5353", "[::1]:99"]),
    ],
)  # fmt: skip
def test_the_nodes_setting_names_servers(text: str, found: list[str]) -> None:
    assert [str(one) for one in upstream.servers({upstream.VARIABLE: text})] == found


@pytest.mark.parametrize(
    "text", ["dns.example", "127.0.0.1:0", "127.0.0.1:x", "1.2.3.4:70000", "[::1]x", "a,b"]
)
def test_a_setting_that_names_none_says_what_to_write(text: str) -> None:
    with pytest.raises(upstream.SettingError, match="write ADDRESS"):
        upstream.servers({upstream.VARIABLE: text})


def test_another_policy_keeps_what_it_allows_and_drops_the_rest_with_its_addresses() -> None:
    other = EgressRule(name="other", target="*.example.net", ports=[443])
    answers, _ = made(policy(ZONE, other))
    answers.found("a.example.org", 4, ["198.41.0.4"])
    answers.found("a.example.net", 4, ["198.41.0.5"])
    assert answers.known == {"a.example.org": ["198.41.0.4"], "a.example.net": ["198.41.0.5"]}
    only = EgressRule(name="only", target="*.example.org", ports=[80])
    kept = answers.change(policy(verify=PhaseRules(network=Network(egress=[only]))), {})
    assert set(kept.names) == {"a.example.org"}
    assert [kept.pins[phase] for phase in ("setup", "agent")] == [{}, {}]
    ((address, rules),) = kept.pins["verify"].items()
    assert address == raw("198.41.0.4") and [(one.name, one.port_low) for one in rules] == [("only", 80)]
    assert answers.ask("a.example.org", 4) == REFUSE
    answers.phase = "verify"
    # It keeps its address: who owns the name leads it elsewhere in vain.
    assert answers.ask("a.example.org", 4) == Answer("have", ("198.41.0.4",))
    answers.change(policy(other), {})
    # What was dropped is looked up again.
    assert answers.ask("a.example.net", 4) == LOOK


def test_another_policy_that_grants_no_private_addresses_drops_them() -> None:
    meant, _ = made(policy(EgressRule(name="zone", target="*.example.org", private=True)))
    meant.found("a.example.org", 4, ["10.0.0.1", "198.41.0.4"])
    meant.found("b.example.org", 4, ["10.0.0.2"])
    kept = meant.change(policy(ZONE), {})
    assert {name: [*map(str, some)] for name, some in kept.names.items()} == {"a.example.org": ["198.41.0.4"]}
    assert meant.ask("b.example.org", 4) == LOOK
    assert meant.found("b.example.org", 4, ["10.0.0.2"]) == REFUSE


def test_a_name_that_another_policy_names_itself_is_in_force_from_its_beginning() -> None:
    answers, told = made(policy(ZONE))
    answers.found("files.example.org", 4, ["198.41.0.4"])
    told.done.clear()
    kept = answers.change(policy(FILES), {"files.example.org": ["198.41.0.4"]})
    assert kept.names == {} and not any(kept.pins.values())
    assert answers.ask("files.example.org", 4) == Answer("have", ("198.41.0.4",)) and told.done == []


def test_another_policy_gives_no_new_budget_of_names_below_wildcards() -> None:
    answers, told = made(policy(ZONE))
    for number in range(BELOW_WILDCARD_MAX_NAMES):
        assert answers.ask(f"n{number}.example.org", 4) == LOOK
    answers.change(policy(ZONE), {})
    assert answers.ask("more.example.org", 4) == REFUSE and [one.limit for one in told.limits] == ["names"]
