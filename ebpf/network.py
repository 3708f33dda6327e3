"""Network rules → the kernel's tries: which longest prefix holds which ordered choices.

In the kernel the longest prefix that covers an address is one look-up. So each distinct prefix is given,
in the rules' order, the choices of all rules whose prefixes cover it: the first that matches decides.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CHOICES = 16
MAPPED = b"\0" * 10 + b"\xff\xff"

CHOICE = np.dtype(
    [
        ("port_low", "<u2"),
        ("port_high", "<u2"),
        ("protocol", "u1"),
        ("allow", "u1"),
        ("reserved", "<u2"),
        ("name", "<u4"),
    ]
)
KEY = np.dtype([("length", "<u4"), ("ruleset", ">u4"), ("address", "u1", (16,))])
VALUE = np.dtype([("count", "<u4"), ("reserved", "<u4"), ("at", CHOICE, (CHOICES,))])


@dataclass(frozen=True, slots=True)
class NetRule:
    """One rule: addresses under `prefix` (16 bytes, IPv4 as ::ffff:a.b.c.d) of `length` bits (0 to 128),
    ports from `port_low` to `port_high`, protocol number (6 TCP, 17 UDP, 0 any), and whether it allows."""

    prefix: bytes
    length: int
    port_low: int = 0
    port_high: int = 65535
    protocol: int = 0
    allow: bool = True
    name: str = ""

    @classmethod
    def of(cls, target: str, **rest: int | bool | str) -> NetRule:
        """A rule for an address or CIDR as text."""
        net = ipaddress.ip_network(target, strict=False)
        raw = net.network_address.packed
        mapped = MAPPED + raw if net.version == 4 else raw
        return cls(mapped, net.prefixlen + (96 if net.version == 4 else 0), **rest)  # type: ignore[arg-type]


class RuleError(ValueError):
    """The rules cannot be put into the kernel; the message says which and what to do."""


def compile_rules(rules: Sequence[NetRule]) -> dict[tuple[bytes, int], list[int]]:
    """(prefix, length) → indexes of the rules that cover it, in order.

    Cost: one look-up per rule and distinct prefix length, so 10,000 rules take a fraction of a second.
    """
    own: dict[tuple[bytes, int], list[int]] = {}
    for index, rule in enumerate(rules):
        own.setdefault((masked(rule.prefix, rule.length), rule.length), []).append(index)
    lengths = sorted({length for _, length in own})
    covering: dict[tuple[bytes, int], list[int]] = {}
    for prefix, length in own:
        found = [
            index
            for shorter in lengths
            if shorter <= length
            for index in own.get((masked(prefix, shorter), shorter), ())
        ]
        covering[prefix, length] = _needed(sorted(found), rules)
    return covering


def _needed(indexes: list[int], rules: Sequence[NetRule]) -> list[int]:
    """Without those that can never be reached, and refused where more remain than the kernel holds."""
    kept: list[int] = []
    for index in indexes:
        rule = rules[index]
        kept.append(index)
        if rule.protocol == 0 and rule.port_low == 0 and rule.port_high == 65535:
            break
    if len(kept) > CHOICES:
        rule = rules[kept[0]]
        raise RuleError(
            f"{len(kept)} network rules apply to one address (rule {rule.name!r} and others), "
            f"at most {CHOICES} can: join ports into ranges or drop rules that overlap"
        )
    return kept


def masked(prefix: bytes, length: int) -> bytes:
    """The first `length` bits of a 16-byte prefix, the rest zero."""
    number = int.from_bytes(prefix, "big")
    return (number >> (128 - length) << (128 - length)).to_bytes(16, "big")
