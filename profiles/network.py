"""Policy → flat network rules, as the sensor's maps and the launcher take them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from invigilator.profiles.names import is_name, is_wildcard
from invigilator.profiles.policy import EgressRule, Network, PhaseName, Policy

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str], Sequence[str]]
"""Name → its addresses as text; raises OSError where it has none."""

PROTOCOLS = {"any": 0, "tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}
LOOPBACK: tuple[IpNetwork, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
MAPPED_PREFIX = 96
"""Bits of ::ffff:0:0/96, below which IPv4 addresses stand (RFC 4291, section 2.5.5.2)."""
EVERY_ADDRESS = "::/0"
"""IPv4's too, which stand below ::ffff:0:0/96."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")
"""IPv4 addresses as IPv6 had them first (RFC 4291, section 2.5.5.1)."""
_NO_HOST = [
    ipaddress.ip_network(text) for text in ("192.88.99.0/24", "168.63.129.16/32", "3fff::/20", "5f00::/16")
]
"""What Python takes for public: relays, segments and documentation (IANA's registries of special-purpose
addresses), and where a cloud answers its guests with their metadata."""
_SIX_TO_FOUR = ipaddress.ip_network("2002::/16")


class NetworkError(Exception):
    """A name that cannot be turned into rules: it has no address, or one that the policy does not grant."""


class NetRule(NamedTuple):
    """One rule; the first that matches an address, port and protocol decides.

    `prefix`: 16 bytes, IPv4 mapped into ::ffff:0:0/96, host bits 0. `length`: bits of it, 0 to 128.
    `port_low` to `port_high`: inclusive, host byte order. `protocol`: IPPROTO_TCP, IPPROTO_UDP or 0 for any.
    `name`: the rule of the policy that it comes from.
    """

    prefix: bytes
    length: int
    port_low: int
    port_high: int
    protocol: int
    allow: bool
    name: str


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """The rules of a phase. `hosts`: the addresses that names resolved to, for the sandbox's /etc/hosts. What
    lies behind a wildcard is known only when it is asked for (`pins.Pins`).

    `binds`: which own addresses and ports a socket may take, `default_bind` where none of them matches.
    """

    default_allow: bool
    rules: tuple[NetRule, ...]
    needs_link: bool
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default_bind: bool = True
    binds: tuple[NetRule, ...] = ()

    def decide(self, address: str | bytes, port: int, protocol: int) -> tuple[bool, str]:
        """(allowed, name of the deciding rule or `default_action`) for an address as text or as 16 bytes."""
        raw = address if isinstance(address, bytes) else mapped(ipaddress.ip_address(address))
        number = int.from_bytes(raw, "big")
        for rule in self.rules:
            shift = 128 - rule.length
            inside = number >> shift == int.from_bytes(rule.prefix, "big") >> shift
            if inside and rule.port_low <= port <= rule.port_high and rule.protocol in (0, protocol):
                return rule.allow, rule.name
        return self.default_allow, "default_action"


def system_resolver(name: str) -> Sequence[str]:
    """The addresses that this machine's resolver knows for `name`; OSError where there are none."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def compile(
    policy: Policy, phase: PhaseName, resolve: Resolver = system_resolver, *, own_loopback: bool = True
) -> NetworkRules:
    """The rules in force in a phase; with `mode: observe` everything is allowed.

    `own_loopback`: the sandbox has a network namespace of its own, whose loopback it may use (after the
    policy's own rules). Raises NetworkError.
    """
    if policy.mode == "observe":
        return NetworkRules(default_allow=True, rules=(), needs_link=True)
    return stated(policy, phase, resolve, own_loopback=own_loopback)


def stated(
    policy: Policy, phase: PhaseName, resolve: Resolver = system_resolver, *, own_loopback: bool = True
) -> NetworkRules:
    """The rules that the policy states for a phase, whatever its mode: what detectors judge by."""
    network = network_of(policy, phase)
    hosts: dict[str, tuple[str, ...]] = {}
    rules: list[NetRule] = []
    for rule in network.egress:
        rules += _flatten(rule, resolve, hosts)
    if own_loopback:
        rules += [_rule(net, (0, 65535), 0, True, "loopback") for net in LOOPBACK]
    own = binds_of(policy, phase)
    binds = tuple(entry for rule in own.egress for entry in _flatten(rule, resolve, hosts))
    return NetworkRules(
        network.default_action == "allow",
        tuple(rules),
        needs_link(policy, phase),
        hosts,
        own.default_action == "allow",
        binds,
    )


def network_of(policy: Policy, phase: PhaseName) -> Network:
    """What holds for the network in a phase."""
    rules = policy.phases.get(phase)
    return rules.network if rules and rules.network else policy.network


def binds_of(policy: Policy, phase: PhaseName) -> Network:
    """The bind rules of a phase as rules of egress, which are judged the same way: an address a rule."""
    network = network_of(policy, phase)
    rules = [
        EgressRule(**rule.model_dump(exclude={"addresses"}), target=address)
        for rule in network.bind
        for address in rule.addresses or [EVERY_ADDRESS]
    ]
    return Network(default_action=network.default_bind, egress=rules)


def needs_link(policy: Policy, phase: PhaseName | None = None) -> bool:
    """Whether a phase (None: any phase) lets anything out, so that the sandbox needs a link at all."""
    if policy.mode == "observe":
        return True
    phases: Sequence[PhaseName] = ("setup", "agent", "verify") if phase is None else (phase,)
    return any(_lets_out(network_of(policy, each)) for each in phases)


def target_network(target: str) -> IpNetwork | None:
    """The addresses of a target that is an address or a CIDR; None for a name or a wildcard. ValueError for
    none of these."""
    try:
        return _unmapped(ipaddress.ip_network(target))
    except ValueError:
        if "/" in target or ":" in target or target.replace(".", "").isdigit():
            raise
    if not is_name(target):
        raise ValueError(f"`{target}` is no host name, address or CIDR")
    return None


def is_inside(address: IpAddress) -> bool:
    """Whether an address belongs to no public network: private, shared, link-local (where cloud metadata
    services answer), loopback, multicast, reserved; also as an IPv6 address that carries such an IPv4 one."""
    carried = _carried(address)
    if any(address.version == block.version and address in block for block in _NO_HOST):
        return True
    return not address.is_global or address.is_multicast or (carried is not None and is_inside(carried))


def mapped(address: IpAddress) -> bytes:
    """16 bytes of an address, IPv4 mapped."""
    return address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed


def unmapped(raw: bytes) -> IpAddress:
    """The address of 16 bytes."""
    address = ipaddress.IPv6Address(raw)
    return address.ipv4_mapped or address


def _lets_out(network: Network) -> bool:
    return network.default_action == "allow" or any(
        rule.action == "allow" and not _is_loopback(rule.target) for rule in network.egress
    )


def _is_loopback(target: str) -> bool:
    network = target_network(target)
    if network is None:
        return target.removesuffix(".").lower() == "localhost"
    return any(network.version == own.version and network.subnet_of(own) for own in LOOPBACK)  # type: ignore[arg-type]


def _flatten(rule: EgressRule, resolve: Resolver, hosts: dict[str, tuple[str, ...]]) -> Iterator[NetRule]:
    if is_wildcard(rule.target):
        return
    network = target_network(rule.target)
    targets = [network] if network else _resolved(rule, resolve, hosts)
    for target in targets:
        yield from flat(rule, target)


def flat(rule: EgressRule, target: IpNetwork) -> Iterator[NetRule]:
    """A rule as those of one block of addresses."""
    for ports in port_ranges(rule.ports):
        yield _rule(target, ports, PROTOCOLS[rule.protocol], rule.action == "allow", rule.name)


def _resolved(rule: EgressRule, resolve: Resolver, hosts: dict[str, tuple[str, ...]]) -> list[IpNetwork]:
    if rule.target not in hosts:
        try:
            hosts[rule.target] = tuple(resolve(rule.target))
        except OSError as error:
            raise NetworkError(
                f"egress rule `{rule.name}`: `{rule.target}` does not resolve ({error}); "
                "check the name and this machine's resolver, or write the address"
            ) from error
    addresses = [address_of(text) for text in hosts[rule.target]]
    for address in addresses:
        if rule.action == "allow" and not rule.private and is_inside(address):
            raise NetworkError(
                f"egress rule `{rule.name}`: `{rule.target}` resolves to {address}, no public address; "
                "write `private: true` into the rule if that is meant"
            )
    return [ipaddress.ip_network(address) for address in addresses]


def address_of(text: str) -> IpAddress:
    """An address as text, without a zone; a mapped one is the IPv4 address. ValueError for none."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address


def _unmapped(network: IpNetwork) -> IpNetwork:
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= MAPPED_PREFIX:
        inner = network.network_address.ipv4_mapped
        if inner is not None:
            return ipaddress.ip_network((inner, network.prefixlen - MAPPED_PREFIX))
    return network


def _carried(address: IpAddress) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64 or address in _COMPATIBLE:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or (address.sixtofour if address in _SIX_TO_FOUR else None)


def port_ranges(ports: Sequence[int]) -> list[tuple[int, int]]:
    """Ports as inclusive ranges, neighbours joined; no ports: all of them."""
    ranges: list[tuple[int, int]] = []
    for port in sorted(set(ports)):
        if ranges and port == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], port)
        else:
            ranges.append((port, port))
    return ranges or [(0, 65535)]


def _rule(network: IpNetwork, ports: tuple[int, int], protocol: int, allow: bool, name: str) -> NetRule:
    extra = MAPPED_PREFIX if network.version == 4 else 0
    return NetRule(mapped(network.network_address), network.prefixlen + extra, *ports, protocol, allow, name)


def holds_mapped(network: IpNetwork) -> bool:
    """Whether an IPv6 network also holds the addresses that stand for IPv4."""
    return isinstance(network, ipaddress.IPv6Network) and ipaddress.ip_address("::ffff:0:0") in network
