"""A policy learned from facts: it allows what it says it covers, and nothing that the base denies."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from invigilator.profiles import access, explain, library, network, protected
from invigilator.profiles.apparmor import globs
from invigilator.profiles.check import check_loaded
from invigilator.profiles.learning import Connection, Learned, Recording, Use, learn
from invigilator.profiles.learning.network import address_bytes, own_ports
from invigilator.profiles.learning.shapes import groups

BASE = library.load("swe-task")
TCP, UDP = 6, 17


def recorded(
    *uses: Use, connections: tuple[Connection, ...] = (), names: tuple[bytes, ...] = ()
) -> Recording:
    return Recording("a test", Counter(uses), Counter(connections), names=Counter(names))


def learned(*recordings: Recording, **options: object) -> Learned:
    return learn(recordings, BASE, name="mine", extends="swe-task", **options)  # type: ignore[arg-type]


def loaded(found: Learned) -> library.Loaded:
    return library.load_text(found.text, "mine.yaml")


def denied(policy: library.Policy, use: Use) -> bool:
    decision = access.decide(policy, "agent", use.access, use.path)
    if decision is not None:
        return decision.denied
    return protected.PathClasses(policy).access(use.path, access.SIDES[use.access]) == "deny"


def made(*names: str, folder: str = "/tmp") -> list[Use]:
    return [Use(f"{folder}/{name}".encode(), "write", created=True) for name in names]


names = st.one_of(
    st.sampled_from(
        [b"tmp", b"a b", b"x*y", b"it's", b"{a,b}", b"[z]", b"#c", b": d", b"...", b"@{HOME}", b"\\"]
    ),
    st.sampled_from(
        [b"usr", b"etc", b"bin", b"grader", b"solution", b"logs", b"verifier", b"workspace", b"lib"]
    ),
    st.binary(min_size=1, max_size=8).map(lambda raw: raw.replace(b"/", b"-").replace(b"\0", b"0")),
    st.from_regex(rb"tmp[a-z0-9_]{8}", fullmatch=True),
    st.from_regex(rb"lib-[0-9]\.[0-9]{1,2}", fullmatch=True),
)
paths = st.lists(names, min_size=1, max_size=5).map(lambda parts: b"/" + b"/".join(parts))
uses = st.builds(
    Use,
    paths,
    st.sampled_from(["read", "write", "append", "exec", "link", "lock", "mmap"]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(uses, max_size=25))
def test_it_allows_what_it_covers_and_says_why_it_leaves_out_the_rest(given_uses: list[Use]) -> None:
    found = learned(recorded(*given_uses))
    policy = loaded(found).policy
    assert [use for use in found.covered if denied(policy, use)] == []
    left = {path for what in found.left_out.values() for path in what}
    assert {use for use in given_uses if use not in found.covered} == {
        use for use in given_uses if use.path in left and use not in found.covered
    }
    assert not [one for one in check_loaded(loaded(found)) if one.severity == "error"]
    assert found.text.isascii() and not set(map(ord, found.text)) & (set(range(32)) - {10})


@settings(max_examples=150, deadline=None)
@given(st.lists(uses, max_size=25), uses)
def test_it_never_allows_what_the_base_denies_nor_what_no_pattern_stands_for(
    given_uses: list[Use], other: Use
) -> None:
    found = learned(recorded(*given_uses))
    policy = loaded(found).policy
    if denied(BASE, other):
        assert denied(policy, other)
    strict = BASE.model_copy(
        update={"filesystem": BASE.filesystem.model_copy(update={"default_action": "deny"})}
    )
    stands_for = any(globs.matches(one.text, other.path) for one in found.patterns)
    below = any(one.path and other.path.startswith(one.path + b"/") for one in found.patterns)
    if not (stands_for or below):
        assert denied(policy, other) == denied(strict, other)


@settings(max_examples=100, deadline=None)
@given(st.lists(uses, max_size=25))
def test_no_pattern_of_several_names_is_above_a_program_or_a_protected_folder(given_uses: list[Use]) -> None:
    found = learned(recorded(*given_uses))
    apart = [use.path for use in given_uses if use.access in ("exec", "mmap")]
    apart += [rule.path for rule in protected.rules(BASE)]
    for one in found.patterns:
        if one.instances:
            assert not any(globs.matches(one.text, path) for path in apart)
            assert len(set(one.instances)) >= 2


@settings(max_examples=50, deadline=None)
@given(st.lists(uses, max_size=15), st.randoms())
def test_the_same_facts_in_any_order_give_the_same_text(given_uses: list[Use], random: object) -> None:
    shuffled = [*given_uses]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert learned(recorded(*given_uses)).text == learned(recorded(*shuffled)).text


def test_temporary_names_become_a_pattern_from_the_second_on() -> None:
    one = learned(recorded(*made("tmpab12cd34")))
    assert [pattern.text for pattern in one.patterns] == ["/tmp/tmpab12cd34"]
    two = learned(recorded(*made("tmpab12cd34")), recorded(*made("tmpx_y9z8w7")))
    assert [pattern.text for pattern in two.patterns] == ["/tmp/tmp????????"]
    assert "2 distinct, /tmp/tmpab12cd34, /tmp/tmpx_y9z8w7" in two.text
    assert not denied(loaded(two).policy, Use(b"/tmp/tmp00000000", "write"))
    assert denied(loaded(two).policy, Use(b"/tmp/tmp000000001", "write"))
    assert denied(loaded(two).policy, Use(b"/tmp/tmp00000000", "read"))


def test_what_lies_below_temporary_folders_is_joined() -> None:
    uses = [Use(f"/tmp/cc{name}/out.o".encode(), "write", created=True) for name in ("aB3dE9", "Zx81qW")]
    folders = [Use(use.path.rpartition(b"/")[0], "write", True, True) for use in uses]
    found = learned(recorded(*uses, *folders))
    assert [one.text for one in found.patterns] == ["/tmp/cc??????/", "/tmp/cc??????/out.o"]


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        ({b"tool-1.2": False, b"tool-1.3.1": False}, "tool-[0-9]*"),
        ({b"user-1": False, b"user-2": False}, None),
        ({b"part-1": True, b"part-22": True}, "part-[0-9]*"),
        ({b"17": True, b"18": True}, None),
        ({b"reports": True, b"results": True}, None),
        ({b"alpha_one": False, b"alpha_two": False}, None),
        ({b"tmp.aB3dE9zX1q": True, b"tmp.Q0w9E8r7T6": True}, "tmp.??????????"),
        ({b"7w0c2knh": True, b"q1_e2r3t": True}, "????????"),
    ],
)
def test_names_are_alike_on_evidence_alone(names: dict[bytes, bool], pattern: str | None) -> None:
    assert [one.pattern for one in groups(names)] == ([pattern] if pattern else [])


def test_a_program_among_temporary_names_keeps_them_apart() -> None:
    ran = Use(b"/tmp/tmpx_y9z8w7/run", "exec")
    folders = [Use(f"/tmp/{name}".encode(), "write", True, True) for name in ("tmpab12cd34", "tmpx_y9z8w7")]
    found = learned(recorded(*folders, ran))
    assert not any(one.instances for one in found.patterns)
    assert denied(loaded(found).policy, Use(b"/tmp/tmpab12cd34/run", "exec"))


def test_many_files_read_in_a_folder_stand_for_its_files_but_not_in_etc() -> None:
    here = [Use(f"/usr/share/data/{letter}".encode(), "read") for letter in "abcdefgh"]
    etc = [Use(f"/etc/app/conf/{letter}".encode(), "read") for letter in "abcdefgh"]
    policy = loaded(found := learned(recorded(*here, *etc))).policy
    assert [one.text for one in found.patterns if one.instances] == ["/usr/share/data/*"]
    assert not denied(policy, Use(b"/usr/share/data/z", "read"))
    assert denied(policy, Use(b"/usr/share/data/z/deeper", "read"))
    assert denied(policy, Use(b"/etc/app/conf/z", "read"))


def test_a_name_that_no_profile_can_hold_is_left_out_and_shown_harmlessly() -> None:
    hostile = Use(b'/tmp/a"\nextends: nothing\x1b[2J', "write", created=True)
    found = learned(recorded(hostile, Use(b"/tmp/caf\xe9", "read")))
    assert hostile not in found.covered
    assert "\nextends: nothing" not in found.text and "\x1b" not in found.text
    assert any("control character" in reason or "quote" in reason for reason in found.left_out)
    assert not denied(loaded(found).policy, Use(b"/tmp/caf\xe9", "read"))


def test_what_the_base_denies_is_not_learned() -> None:
    read = Use(b"/grader/tests.py", "read")
    found = learned(recorded(read))
    assert read not in found.covered and denied(loaded(found).policy, read)
    assert found.left_out == {"the base denies the class grader to the agent": Counter({read.path: 1})}


def test_privileged_calls_that_nobody_made_are_denied_and_those_made_are_not() -> None:
    traced = recorded()
    traced.calls.add("PTRACE")
    quiet, tracing = loaded(learned(recorded())).policy, loaded(learned(traced)).policy
    assert explain.explain(quiet, "agent", "syscall", "ptrace").verdict == "denied"
    assert "ptrace" not in tracing.phases["agent"].syscalls.deny
    assert set(BASE.syscalls.deny) <= set(tracing.phases["agent"].syscalls.deny)


def test_an_address_that_was_reached_is_allowed_and_its_neighbours_are_not() -> None:
    reached = Connection(address_bytes("198.51.100.7"), 443, TCP)
    found = learned(recorded(connections=(reached, Connection(address_bytes("127.0.0.1"), 80, TCP))))
    rules = network.compile(loaded(found).policy, "agent", lambda name: [])
    assert rules.decide("198.51.100.7", 443, TCP)[0]
    for address, port, protocol in (
        ("198.51.100.8", 443, TCP), ("198.51.100.7", 444, TCP), ("198.51.100.7", 443, UDP),
    ):  # fmt: skip
        assert not rules.decide(address, port, protocol)[0]
    assert "127.0.0.1" not in found.text


def test_a_name_that_leads_to_what_was_reached_is_the_rule_and_a_private_one_says_so() -> None:
    reached = recorded(connections=(Connection(address_bytes("10.1.2.3"), 443, TCP),), names=(b"files.test",))
    found = learned(reached, hosts={"files.test": ("10.1.2.3",)})
    [rule] = loaded(found).policy.phases["agent"].network.egress
    assert (rule.target, rule.ports, rule.private) == ("files.test", [443], True)


def test_an_egress_denial_of_the_base_stays_and_what_it_denies_is_left_out(tmp_path) -> None:
    (tmp_path / "base.yaml").write_text(
        "version: 1\nname: b\nextends: base\nnetwork:\n  default_action: allow\n"
        "  egress: [{name: inside, action: deny, target: 10.0.0.0/8, protocol: any}]\n"
    )
    base = library.load(str(tmp_path / "base.yaml"))
    inside, outside = (Connection(address_bytes(one), 80, TCP) for one in ("10.0.0.1", "198.51.100.1"))
    found = learn([recorded(connections=(inside, outside))], base, name="m", extends="./base.yaml")
    policy = library.load_text(found.text, "m.yaml", tmp_path).policy
    rules = network.compile(policy, "agent")
    assert rules.decide("198.51.100.1", 80, TCP)[0]
    assert rules.decide("10.0.0.1", 80, TCP) == (False, "inside")
    assert "the base denies it (egress rule inside)" in found.left_out


def test_own_ports_that_were_taken_are_allowed_and_no_others() -> None:
    facts = recorded()
    facts.binds.update(
        [Connection(address_bytes(one), port, TCP) for one, port in (("127.0.0.1", 0), ("0.0.0.0", 8080))]
    )
    own = own_ports(network.compile(loaded(learned(facts)).policy, "agent"))
    assert own.decide("127.0.0.1", 0, TCP)[0] and own.decide("0.0.0.0", 8080, TCP)[0]
    for address, port, protocol in (
        ("127.0.0.1", 8080, TCP), ("0.0.0.0", 0, TCP), ("0.0.0.0", 8080, UDP), ("::", 8080, TCP),
    ):  # fmt: skip
        assert not own.decide(address, port, protocol)[0]
