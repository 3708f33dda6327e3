"""The addresses that a sandbox's names lead to, and the rules that these addresses get.

The first answer for a name stays for the sandbox's life: who owns the name cannot lead it elsewhere later.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from invigilator.profiles.names import ADDRESSES_MAX, NameRules, canonical, is_wildcard, matches
from invigilator.profiles.network import (
    IpAddress,
    NetRule,
    NetworkRules,
    Resolver,
    address_of,
    compile,
    flat,
    is_inside,
    network_of,
    target_network,
)
from invigilator.profiles.policy import EgressRule, PhaseName, Policy

Family = int
"""4 or 6."""


class Sorted(NamedTuple):
    """Addresses that a name led to: those to hand out, and those that its rule does not grant."""

    granted: tuple[IpAddress, ...]
    refused: tuple[IpAddress, ...]


class Pins:
    """Names → addresses of one sandbox."""

    def __init__(self, policy: Policy, hosts: Mapping[str, Sequence[str]]) -> None:
        """`hosts`: what names of the policy led to when the sandbox was made."""
        self._policy = policy
        self._known: dict[tuple[str, Family], tuple[IpAddress, ...]] = {}
        for name, texts in hosts.items():
            addresses = [address_of(text) for text in texts]
            for family in (4, 6):
                found = tuple(one for one in addresses if one.version == family)
                self._known[canonical(name), family] = found

    def of(self, name: str, family: Family) -> tuple[IpAddress, ...] | None:
        """The addresses of a canonical name; None where it has not led anywhere yet."""
        return self._known.get((name, family))

    def put(self, name: str, family: Family, addresses: Sequence[IpAddress]) -> None:
        """Keep what a name leads to. The first word stands."""
        self._known.setdefault((name, family), tuple(addresses))

    def rules(self, phase: PhaseName, address: IpAddress) -> list[NetRule]:
        """All rules of a phase about one address, in order, those by name with those by address."""
        names = [name for (name, _), known in self._known.items() if address in known]
        found: list[NetRule] = []
        for rule in network_of(self._policy, phase).egress:
            if _is_about(rule, address, names):
                found += flat(rule, ipaddress.ip_network(address))
        return found


def asked(policy: Policy, phase: PhaseName, names: Iterable[str], resolve: Resolver) -> NetworkRules:
    """The rules in force in a phase once these canonical names were asked for, by `resolve` as it answers
    now. What a wildcard is about has none before. Raises NetworkError as `network.compile`."""
    rules = compile(policy, phase, resolve)
    if policy.mode == "observe":
        return rules
    pins, found = Pins(policy, rules.hosts), list[IpAddress]()
    for name in names:
        if grants(policy, phase, name):
            with contextlib.suppress(OSError):
                found += _pinned(pins, policy, phase, name, resolve(name))
    own = [rule for address in dict.fromkeys(found) for rule in pins.rules(phase, address)]
    return replace(rules, rules=(*own, *rules.rules))


def leading(policy: Policy, phase: PhaseName, name: str, address: IpAddress) -> NetworkRules:
    """What a phase's rules say of an address alone, if it is what a canonical name leads to."""
    pins = Pins(policy, {})
    found = _pinned(pins, policy, phase, name, [str(address)]) if grants(policy, phase, name) else ()
    return NetworkRules(False, tuple(rule for one in found for rule in pins.rules(phase, one)), False)


def grants(policy: Policy, phase: PhaseName, name: str) -> bool:
    """Whether a phase hands a canonical name out by a rule, so that its addresses are let through."""
    decision = NameRules(network_of(policy, phase)).decide(name)
    return decision.allowed and decision.pinned


def _pinned(
    pins: Pins, policy: Policy, phase: PhaseName, name: str, texts: Sequence[str]
) -> Sequence[IpAddress]:
    private = NameRules(network_of(policy, phase)).decide(name).private
    found: list[IpAddress] = []
    for family in (4, 6):
        pins.put(name, family, sort(texts, family, private=private).granted)
        found += pins.of(name, family) or ()
    return found


def sort(texts: Sequence[str], family: Family, *, private: bool) -> Sorted:
    """Of what a name server answered, what may be handed out: the family that was asked for, no IPv4 address
    dressed as IPv6, and, unless `private`, none of the inside."""
    addresses = [ipaddress.ip_address(text) for text in dict.fromkeys(texts)]
    granted = [one for one in addresses if one.version == family and not _is_dressed(one)]
    if not private:
        granted = [one for one in granted if not is_inside(one)]
    refused = [one for one in addresses if one not in granted]
    return Sorted(tuple(granted[:ADDRESSES_MAX]), tuple(refused))


def _is_dressed(address: IpAddress) -> bool:
    return address.version == 6 and address.ipv4_mapped is not None


def _is_about(rule: EgressRule, address: IpAddress, names: Sequence[str]) -> bool:
    block = None if is_wildcard(rule.target) else target_network(rule.target)
    if block is None:
        return any(matches(rule.target, name) for name in names)
    return address in block
