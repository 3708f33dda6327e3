"""What two networks let out differently, compared by what they decide and not by how they are written.

Both are constant between the borders of their address blocks and ports, so one sample on each side of every
border tells them apart completely. A name stands for itself: it is matched by rules of that name, and by
blocks that hold every address.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from invigilator.profiles.names import covers
from invigilator.profiles.network import (
    MAPPED_PREFIX,
    IpNetwork,
    mapped,
    port_ranges,
    target_network,
)
from invigilator.profiles.policy import EgressRule, Network

PROTOCOLS = ("tcp", "udp")
ADDRESS_BITS = 128


class Block(NamedTuple):
    """An egress rule's target, ports and protocols, ready to be matched; `name` "" for an address block."""

    rule: EgressRule
    low: int
    high: int
    name: str
    ports: list[tuple[int, int]]


class Difference(NamedTuple):
    """What only one of the two lets out, by the rule that makes the difference (None: the default)."""

    opened: bool
    rule: EgressRule | None


def differences(old: Network, new: Network, *, first_port: int = 1) -> list[Difference]:
    """What becomes reachable (`opened`) or unreachable, each once. `first_port`: the lowest port that is."""
    before, after = _blocks(old), _blocks(new)
    found: dict[tuple[bool, str], Difference] = {}
    for place, port, protocol in _samples([*before, *after], first_port):
        was, old_rule = _decide(old, before, place, port, protocol)
        now, new_rule = _decide(new, after, place, port, protocol)
        if was != now:
            rule = new_rule or old_rule
            key = (now, rule.model_dump_json(exclude={"name", "action"}) if rule else "")
            found.setdefault(key, Difference(now, rule))
    return list(found.values())


def _blocks(network: Network) -> list[Block]:
    blocks = []
    for rule in network.egress:
        target = target_network(rule.target)
        name = "" if target else rule.target.lower().rstrip(".")
        low, high = span(target) if target else (0, -1)
        blocks.append(Block(rule, low, high, name, port_ranges(rule.ports)))
    return blocks


def span(network: IpNetwork) -> tuple[int, int]:
    low = int.from_bytes(mapped(network.network_address), "big")
    bits = network.prefixlen + (MAPPED_PREFIX if network.version == 4 else 0)
    return low, low + (1 << (ADDRESS_BITS - bits)) - 1


def _samples(blocks: list[Block], first_port: int) -> Iterator[tuple[int | str, int, str]]:
    borders = {0} | {edge for block in blocks if not block.name for edge in (block.low, block.high + 1)}
    places: set[int | str] = {border for border in borders if border < 1 << ADDRESS_BITS}
    places |= {block.name for block in blocks if block.name}
    edges = {edge for block in blocks for low, high in block.ports for edge in (low, high + 1)}
    ports = sorted(edge for edge in {first_port, *edges} if first_port <= edge <= 65535)
    return itertools.product(sorted(places, key=str), ports, PROTOCOLS)


def _decide(
    network: Network, blocks: list[Block], place: int | str, port: int, protocol: str
) -> tuple[bool, EgressRule | None]:
    for block in blocks:
        if (
            _holds(block, place)
            and block.rule.protocol in ("any", protocol)
            and any(low <= port <= high for low, high in block.ports)
        ):
            return block.rule.action == "allow", block.rule
    return network.default_action == "allow", None


def _holds(block: Block, place: int | str) -> bool:
    if isinstance(place, str):
        return (bool(block.name) and covers(block.name, place)) or (
            not block.name and block.rule.target == "0.0.0.0/0"
        )
    return not block.name and block.low <= place <= block.high
