"""Messages of a sandbox: any bytes, and answers that a resolver understands."""

from __future__ import annotations

import dns.flags
import dns.message
import dns.rcode
from hypothesis import given
from hypothesis import strategies as st

from invigilator.sandbox.resolver import wire

QUERY = dns.message.make_query("Files.Example.ORG", "A", use_edns=0).to_wire()
SIX = dns.message.make_query("files.example.org", "AAAA").to_wire()


def _answers(data: bytes) -> None:
    question = wire.read(data)
    if question is None:
        malformed = wire.malformed(data)
        assert malformed is None or (len(malformed), malformed[:2]) == (12, data[:2])
        return
    assert question.name.isascii() and question.name == question.name.lower()
    address = {4: ["198.41.0.4"], 6: ["2001:4860:4860::8888"]}.get(question.family, [])
    for answer in (wire.answer(question, address), wire.refusal(question, wire.REFUSED)):
        assert len(answer) <= wire.UDP_MAX_BYTES and answer[:2] == data[:2] and answer[2] & 0x80


@given(st.binary(max_size=2048))
def test_any_bytes_are_read_or_told_to_be_none(data: bytes) -> None:
    _answers(data)


@given(
    st.lists(st.tuples(st.integers(0, len(QUERY) - 1), st.integers(0, 255)), max_size=8), st.integers(0, 600)
)
def test_damaged_questions_are_read_or_told_to_be_none(changes: list[tuple[int, int]], more: int) -> None:
    data = bytearray(QUERY)
    for at, byte in changes:
        data[at] = byte
    _answers(bytes(data) + bytes(more))


@given(st.lists(st.binary(min_size=1, max_size=63), min_size=1, max_size=3))
def test_odd_bytes_of_a_name_are_escaped_and_come_back_as_they_were(labels: list[bytes]) -> None:
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    data = QUERY[:12] + name + b"\0\x01\0\x01"
    question = wire.read(data[:4] + b"\0\1\0\0\0\0\0\0" + data[12:])
    assert question is not None and question.name.isascii() and question.name.isprintable()
    assert wire.answer(question, [])[12 : 12 + len(name)] == name


def test_answers_are_flat_and_bear_the_name_as_it_was_asked() -> None:
    question = wire.read(QUERY)
    assert question is not None and (question.name, question.family) == ("files.example.org", 4)
    told = dns.message.from_wire(wire.answer(question, ["198.41.0.4", "198.41.0.5"]))
    (found,) = told.answer
    assert found.name.to_text() == "Files.Example.ORG." and found.ttl == wire.TTL_S
    assert {one.to_text() for one in found} == {"198.41.0.4", "198.41.0.5"}  # in any order
    assert told.id == dns.message.from_wire(QUERY).id and told.flags & dns.flags.RA


def test_answers_that_are_too_long_are_cut_over_udp_and_whole_over_tcp() -> None:
    long = ".".join(["a" * 60] * 3)
    question = wire.read(dns.message.make_query(long, "AAAA").to_wire())
    assert question is not None
    many = [f"2001:4860::{n:x}" for n in range(16)]
    short = dns.message.from_wire(wire.answer(question, many))
    assert short.flags & dns.flags.TC and not short.answer
    assert len(dns.message.from_wire(wire.answer(question, many, 0xFFFF)).answer[0]) == 16


def test_what_is_no_address_has_no_family_and_what_is_no_question_none() -> None:
    text = wire.read(dns.message.make_query("files.example.org", "TXT").to_wire())
    assert text is not None and text.family == 0
    for other in (
        dns.message.make_query("files.example.org", "A", rdclass="CH").to_wire(),
        dns.message.make_response(dns.message.from_wire(SIX)).to_wire(),
        SIX[:2] + bytes([0x28]) + SIX[3:],  # an update
        SIX[:4] + b"\0\0" + SIX[6:],
        SIX[:4] + b"\0\2" + SIX[6:],
    ):
        assert wire.read(other) is None
    assert wire.malformed(b"x" * 11) is None and wire.malformed(b"xx\x80" + bytes(9)) is None
    refused = dns.message.from_wire(wire.malformed(SIX[:13]) or b"")
    assert refused.rcode() == dns.rcode.FORMERR
