"""Canonical JSON (RFC 8785) and policy versions."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invigilator.profiles import canonical, library
from invigilator.profiles.policy import Policy

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-canonical.INTEGER_MAX, canonical.INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)

# RFC 8785, appendix B: IEEE 754 bits and the text they must become.
NUMBERS = {
    0x0000000000000000: "0",
    0x8000000000000000: "0",
    0x0000000000000001: "5e-324",
    0x8000000000000001: "-5e-324",
    0x7FEFFFFFFFFFFFFF: "1.7976931348623157e+308",
    0x4340000000000000: "9007199254740992",
    0x4430000000000000: "295147905179352830000",
    0x44B52D02C7E14AF5: "9.999999999999997e+22",
    0x44B52D02C7E14AF6: "1e+23",
    0x44B52D02C7E14AF7: "1.0000000000000001e+23",
    0x444B1AE4D6E2EF4E: "999999999999999700000",
    0x444B1AE4D6E2EF50: "1e+21",
    0x3EB0C6F7A0B5ED8C: "9.999999999999997e-7",
    0x3EB0C6F7A0B5ED8D: "0.000001",
    0x41B3DE4355555553: "333333333.3333332",
    0x41B3DE4355555556: "333333333.3333334",
    0xBECBF647612F3696: "-0.0000033333333333333333",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_are_written_as_the_rfc_lists_them(bits: int, text: str) -> None:
    (value,) = struct.unpack(">d", struct.pack(">Q", bits))
    assert canonical.number(value) == text


@given(JSON)
def test_canonical_json_reads_back_to_the_same_value_and_the_same_bytes(value: Any) -> None:
    written = canonical.dumps(value)
    read = json.loads(written, parse_int=float)
    assert canonical.dumps(read) == written
    assert read == value


@given(st.dictionaries(TEXT, JSON, min_size=2), st.randoms(use_true_random=False))
def test_the_order_of_keys_changes_nothing(value: dict[str, Any], order: random.Random) -> None:
    items = list(value.items())
    order.shuffle(items)
    assert canonical.dumps(dict(items)) == canonical.dumps(value)


def test_keys_are_sorted_by_utf16_units_as_the_rfc_shows() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    written = json.loads(canonical.dumps(dict.fromkeys(keys, 0)))
    assert list(written) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, "\ud800", {"\udfff": 1}])
def test_what_json_cannot_hold_exactly_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        canonical.dumps(value)


def test_the_name_is_in_no_version() -> None:
    assert canonical.policy_versions(Policy(name="a")) == canonical.policy_versions(Policy(name="b"))


def test_said_and_unsaid_defaults_have_the_same_versions() -> None:
    said = "limits: {memory: 2GiB, ttl: 60min}\nsyscalls: {io_uring: deny}\n"
    head = "version: 1\nname: x\n"
    one, two = library.load_text(head).policy, library.load_text(head + said).policy
    assert canonical.policy_versions(one) == canonical.policy_versions(two)


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("limits: {pids: 7}", {"confinement"}),
        ("penalty: {cap: 3.0}", {"penalty"}),
        ("detectors: {disabled: [log_flood]}", {"detection"}),
        ("filesystem: {canaries: [{under: /srv}]}", {"detection"}),
        ("filesystem: {protected: {grader: [/srv]}}", {"confinement", "detection"}),
        ("network: {default_action: allow}", {"confinement", "detection"}),
    ],
)
def test_a_change_moves_the_versions_of_its_parts_alone(line: str, changed: set[str]) -> None:
    before = canonical.policy_versions(library.load_text("version: 1\nname: x\n").policy)._asdict()
    after = canonical.policy_versions(library.load_text(f"version: 1\nname: x\n{line}\n").policy)._asdict()
    assert {part for part in before if before[part] != after[part]} == changed
