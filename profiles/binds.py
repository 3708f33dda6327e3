"""What a policy says of the addresses and ports that sockets take: contradictions, and what decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from invigilator.profiles.access import PHASES
from invigilator.profiles.conflicts import Finding, Where
from invigilator.profiles.network import (
    EVERY_ADDRESS,
    PROTOCOLS,
    IpAddress,
    mapped,
    network_of,
    port_ranges,
    target_network,
)
from invigilator.profiles.policy import BindRule, Network, Policy
from invigilator.profiles.reach import span


def findings(policy: Policy) -> Iterator[Finding]:
    """Bind rules that never decide (errors where another says otherwise), and those that change nothing."""
    seen: set[Where] = set()
    for phase in PHASES:
        network = network_of(policy, phase)
        own = (network.bind, network.default_bind) != (policy.network.bind, policy.network.default_bind)
        base: Where = ("phases", phase, "network") if own else ("network",)
        if base not in seen:
            seen.add(base)
            yield from _in_network(base, network)


def decides(rule: BindRule, address: IpAddress, port: int, protocol: str) -> bool:
    """Whether a rule is about this address, port and protocol."""
    place = int.from_bytes(mapped(address), "big")
    return (
        rule.protocol in ("any", protocol)
        and any(low <= port <= high for low, high in port_ranges(rule.ports))
        and any(low <= place <= high for low, high in _places(rule))
    )


def _in_network(base: Where, network: Network) -> Iterator[Finding]:
    for index, rule in enumerate(network.bind):
        yield from _covered((*base, "bind", index), rule, network.bind[:index])
    if network.bind and all(rule.action == network.default_bind for rule in network.bind):
        other = "deny" if network.default_bind == "allow" else "allow"
        message = f"these rules change nothing: `default_bind` is {network.default_bind} too"
        yield Finding((*base, "bind"), message, f"write `default_bind: {other}`", "warning")


def _covered(where: Where, rule: BindRule, earlier: Sequence[BindRule]) -> Iterator[Finding]:
    for index, other in enumerate(earlier):
        place = (*where[:-1], index)
        if other.name == rule.name:
            message = f"two rules are named `{rule.name}`"
            yield Finding((*where, "name"), message, "name them apart", other=place)
        elif _covers(other, rule):
            same = other.action == rule.action
            message = f"`{rule.name}` never decides: `{other.name}` stands before it and covers it"
            fix = f"put it before `{other.name}`, or remove it"
            yield Finding(where, message, fix, "warning" if same else "error", place)
            return


def _covers(wide: BindRule, narrow: BindRule) -> bool:
    if PROTOCOLS[wide.protocol] not in (0, PROTOCOLS[narrow.protocol]):
        return False
    return _within(port_ranges(narrow.ports), port_ranges(wide.ports)) and _within(
        _places(narrow), _places(wide)
    )


def _within(inner: Sequence[tuple[int, int]], outer: Sequence[tuple[int, int]]) -> bool:
    return all(any(low <= a and b <= high for low, high in outer) for a, b in inner)


def _places(rule: BindRule) -> list[tuple[int, int]]:
    blocks = (target_network(address) for address in rule.addresses or [EVERY_ADDRESS])
    return [span(block) for block in blocks if block is not None]
