"""Connections that were recorded, as egress rules."""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from invigilator.profiles.learning.facts import Connection, Recording
from invigilator.profiles.network import NetworkRules, is_inside, mapped, network_of, stated, unmapped
from invigilator.profiles.policy import BindRule, EgressRule, Policy

PROTOCOLS = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}


def rules(
    recordings: Sequence[Recording],
    base: Policy,
    hosts: Mapping[str, Sequence[str]],
    left_out: dict[str, Counter[bytes]],
) -> list[EgressRule]:
    """The agent's egress rules: addresses that were reached, the base's denials, names that stand for others.

    A name comes last: what it will lead to is its owner's word, and the base's denials hold for it too.
    """
    reached: Counter[Connection] = Counter()
    for recording in recordings:
        reached.update(recording.connections)
    decides = stated(base, "agent", lambda name: hosts.get(name, ()))
    ports: dict[tuple[str, str], set[int]] = defaultdict(set)
    for connection, count in sorted(reached.items()):
        address = unmapped(connection.address)
        if address.is_loopback or address.is_unspecified:
            continue
        reason = _denied(decides, connection)
        if reason:
            said = f"{address} port {connection.port}".encode()
            left_out.setdefault(reason, Counter())[said] += count
            continue
        target = _name_of(str(address), recordings, hosts) or str(address)
        ports[target, PROTOCOLS[connection.protocol]].add(connection.port)
    names = {one.name for one in network_of(base, "agent").egress}
    denials = [rule for rule in network_of(base, "agent").egress if rule.action == "deny"]
    named: list[EgressRule] = []
    plain: list[EgressRule] = []
    for (target, protocol), found in sorted(ports.items()):
        is_name = target in hosts
        title = _unused(f"learned-{len(named) + len(plain) + 1}", names)
        inside = is_name and any(is_inside(ipaddress.ip_address(one)) for one in hosts[target])
        rule = EgressRule.model_validate(
            {"name": title, "target": target, "ports": sorted(found), "protocol": protocol, "private": inside}
        )
        (named if is_name else plain).append(rule)
    return [*plain, *denials, *named]


def binds(
    recordings: Sequence[Recording], base: Policy, left_out: dict[str, Counter[bytes]]
) -> list[BindRule]:
    """The own addresses and ports that the agent took and the base lets it; all others are denied."""
    taken: Counter[Connection] = Counter()
    for recording in recordings:
        taken.update(recording.binds)
    decides = own_ports(stated(base, "agent", lambda name: ()))
    ports: dict[tuple[str, str], set[int]] = defaultdict(set)
    for one, count in sorted(taken.items()):
        address = unmapped(one.address)
        reason = None if one.protocol in PROTOCOLS else "neither TCP nor UDP"
        allowed, rule = decides.decide(one.address, one.port, one.protocol)
        if reason or not allowed:
            said = f"own {address} port {one.port}".encode()
            left_out.setdefault(reason or f"the base denies it (bind rule {rule})", Counter())[said] += count
        else:
            ports[str(address), PROTOCOLS[one.protocol]].add(one.port)
    return [
        BindRule.model_validate(
            {
                "name": f"learned-own-{number}",
                "addresses": [address],
                "ports": sorted(found),
                "protocol": protocol,
            }
        )
        for number, ((address, protocol), found) in enumerate(sorted(ports.items()), 1)
    ]


def own_ports(rules: NetworkRules) -> NetworkRules:
    """What a phase says of own addresses and ports, to be asked as one asks about others'."""
    return NetworkRules(rules.default_bind, rules.binds, rules.needs_link)


def kept(base: Policy) -> dict[str, object]:
    """What else the base says of the agent's network: a phase's network is whole, so it is said again."""
    return network_of(base, "agent").model_dump(
        mode="json", exclude={"default_action", "egress", "default_bind", "bind"}, exclude_defaults=True
    )


def _denied(decides: NetworkRules, connection: Connection) -> str | None:
    if connection.protocol not in PROTOCOLS:
        return "neither TCP nor UDP"
    if not connection.port:
        return "no port was named"
    allowed, rule = decides.decide(connection.address, connection.port, connection.protocol)
    return None if allowed or rule == "default_action" else f"the base denies it (egress rule {rule})"


def _name_of(address: str, recordings: Sequence[Recording], hosts: Mapping[str, Sequence[str]]) -> str | None:
    """The name that was asked for and leads to the address: the first, where several do."""
    asked = {name.decode("ascii", "replace") for recording in recordings for name in recording.names}
    leads = sorted(name for name, addresses in hosts.items() if name in asked and address in addresses)
    return leads[0] if leads else None


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "-again"
    return name


def address_bytes(text: str) -> bytes:
    """The 16 bytes by which a recording names an address."""
    return mapped(ipaddress.ip_address(text))
