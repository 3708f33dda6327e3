"""DNS messages (RFC 1035) of a sandbox, and the answers to them. Total: any bytes in, no exception out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

TTL_S = 60
"""Of an answer. Its addresses stay for the sandbox's life; what asks again is answered from here."""
UDP_MAX_BYTES = 512
"""Of an answer without EDNS (RFC 1035, section 4.2.1); longer ones are asked for again over TCP."""
QUERY_MAX_BYTES = 1024
"""Longer than any question with its options."""

REFUSED, SERVFAIL, NXDOMAIN = dns.rcode.REFUSED, dns.rcode.SERVFAIL, dns.rcode.NXDOMAIN
_FAMILIES = {dns.rdatatype.A: 4, dns.rdatatype.AAAA: 6}
_HEAD = struct.Struct("!HHHHHH")
_ANSWER_FORMERR = 0x8001


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `name`: lower case, without the root's dot, odd bytes escaped as `\\DDD`, ASCII.
    `family`: 4 or 6; 0 for what is no address."""

    message: dns.message.Message
    name: str
    family: int


def read(data: bytes) -> Question | None:
    """The question of a query; None where it is no query with one question of the Internet's class."""
    try:
        message = dns.message.from_wire(data[:QUERY_MAX_BYTES], question_only=True, ignore_trailing=True)
        if message.flags & dns.flags.QR or message.opcode() != dns.opcode.QUERY:
            return None
        (asked,) = message.question
        name = asked.name.to_text(omit_final_dot=True)
    except (dns.exception.DNSException, ValueError):
        return None
    if asked.rdclass != dns.rdataclass.IN:
        return None
    return Question(message, name.lower(), _FAMILIES.get(asked.rdtype, 0))


def answer(question: Question, addresses: Sequence[str], limit: int = UDP_MAX_BYTES) -> bytes:
    """The addresses, none for a name that has no such record; cut where they are too long for `limit`."""
    response = _response(question)
    if addresses:
        asked = question.message.question[0]
        response.answer.append(
            dns.rrset.from_text(asked.name, TTL_S, asked.rdclass, asked.rdtype, *addresses)
        )
    try:
        return response.to_wire(max_size=max(limit, UDP_MAX_BYTES))
    except dns.exception.TooBig:
        response.answer.clear()
        response.flags |= dns.flags.TC
        return response.to_wire(max_size=max(limit, UDP_MAX_BYTES))


def refusal(question: Question, code: int) -> bytes:
    """No answer, and why not."""
    response = _response(question)
    response.set_rcode(dns.rcode.Rcode(code))
    return response.to_wire()


def malformed(data: bytes) -> bytes | None:
    """The answer to what is no question; None where none is due: to less than a head, and to answers."""
    if len(data) < _HEAD.size or data[2] & 0x80:
        return None
    return _HEAD.pack(int.from_bytes(data[:2], "big"), _ANSWER_FORMERR, 0, 0, 0, 0)


def _response(question: Question) -> dns.message.Message:
    response = dns.message.make_response(question.message)
    response.flags |= dns.flags.RA
    return response
