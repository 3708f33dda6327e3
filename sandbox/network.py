"""A sandbox's link to the outside, where its policy lets anything out in any phase.

A veth pair: `eth0` inside, with an address from 100.127.192.0/19 (shared address space, RFC 6598) that
follows from the sandbox's ids. The host's end drops what does not come from that address and, where all
phases deny by default, what no rule of any phase allows; which phase may reach what is decided by the
sensor's cgroup programs.
The nftables tables belong to this process (flag `owner`): they go when it goes, however it ends, as the link
goes with the sandbox.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import itertools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from invigilator.profiles import names
from invigilator.profiles import network as compiler
from invigilator.profiles.network import IpAddress, NetRule, NetworkRules
from invigilator.profiles.policy import EgressRule, PhaseName, Policy
from invigilator.sandbox import resolver
from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.forwarding import Forwarding
from invigilator.sandbox.launching import Launcher
from invigilator.sandbox.resolver import upstream
from invigilator.sandbox.spec import Op, Specification
from invigilator.sandbox.tables import Tables

NETWORK = ipaddress.ip_network("100.127.192.0/19")
INSIDE = "eth0"
PREFIX = "gv"
_numbers = itertools.count()
_PROTOCOLS = {0: "", 6: "tcp", 17: "udp"}
_MAPPED = bytes(10) + b"\xff\xff"
_PHASES: tuple[PhaseName, ...] = ("setup", "agent", "verify")


NOTHING_KNOWN: Mapping[str, Sequence[str]] = {}
NOBODY: Mapping[str, Sequence[IpAddress]] = {}


@dataclass(frozen=True, slots=True)
class Needs:
    """What a policy needs of the network. `hosts`: name → addresses, as they are now. `named`: rules that
    allow something by name, whose addresses come when they are asked for; with any, the sandbox has a
    resolver."""

    link: bool
    open: bool
    rules: tuple[NetRule, ...]
    hosts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    named: tuple[EgressRule, ...] = ()


def needs(policy: Policy, known: Mapping[str, Sequence[str]] = NOTHING_KNOWN) -> Needs:
    """All phases taken together, each name looked up once; `SandboxError` where one has no address.
    `known`: canonical names whose addresses stand already."""
    if not compiler.needs_link(policy):
        return Needs(False, False, ())
    try:
        named = tuple(_named(policy))
        if named:
            upstream.servers()
        resolve = functools.cache(lambda name: known.get(names.canonical(name)) or upstream.lookup(name))
        phases: list[NetworkRules] = [compiler.compile(policy, phase, resolve) for phase in _PHASES]
    except (compiler.NetworkError, upstream.SettingError) as error:
        raise SandboxError(f"the policy's network rules: {error}") from error
    hosts = {name: found for rules in phases for name, found in rules.hosts.items()}
    allowed = dict.fromkeys(rule for rules in phases for rule in rules.rules if rule.allow)
    is_open = any(rules.default_allow for rules in phases)
    return Needs(True, is_open, tuple(allowed), hosts, named)


def _named(policy: Policy) -> list[EgressRule]:
    if not names.has_names(policy):
        return []
    found: list[EgressRule] = []
    for phase in _PHASES:
        for rule in names.rules_by_name(compiler.network_of(policy, phase)):
            if rule.action == "allow" and rule not in found:
                found.append(rule)
    return found


def host_rows(wanted: Needs) -> bytes:
    """The lines of /etc/hosts for names of the policy; not for those that a wildcard of it is about too:
    their addresses get its rules when the resolver is asked."""
    wild = [rule.target for rule in wanted.named if names.is_wildcard(rule.target)]
    rows = [
        f"{address} {name}\n"
        for name, some in wanted.hosts.items()
        if not any(names.matches(target, names.canonical(name)) for target in wild)
        for address in some
    ]
    return "".join(rows).encode()


RESOLV_CONF = f"nameserver {resolver.ADDRESS}\n".encode()
"""/etc/resolv.conf of a sandbox with names."""


@dataclass(frozen=True, slots=True)
class Link:
    """One sandbox's link: name of its host end, address inside, address of the host end."""

    name: str
    inside: str
    gateway: str


class Links:
    """The links of one agent. Thread-safe."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._lock = threading.Lock()
        self._tables: Tables | None = None
        self._live: set[str] = set()
        self._forwarding = Forwarding()

    def make(self, number: int, namespace: int, wanted: Needs) -> Link:
        """Link the network namespace (a descriptor); `number` is unique among live sandboxes."""
        first = int(NETWORK.network_address) + 2 * number
        gateway, inside = (str(ipaddress.ip_address(first + offset)) for offset in (0, 1))
        link = Link(f"{PREFIX}{os.getpid():x}-{number:x}", inside, gateway)
        with self._lock:
            self._live.add(link.name)
            try:
                tables = self._ready()
                self._pair(link, namespace)
                tables.run(filter_text(link, wanted))
                self._inside(link, namespace)
            except BaseException:
                self._drop(link)
                raise
        return link

    def admit(self, link: Link, wanted: Needs, name: str, addresses: Sequence[IpAddress]) -> None:
        """Let the addresses of a name through that some rule of `wanted.named` is about."""
        plain = [one for one in addresses if one.version == 4]  # the link carries no IPv6
        if wanted.open or not plain:
            return
        with self._lock:
            tables = self._of(link)
            for number, rule in enumerate(wanted.named):
                if names.matches(rule.target, name):
                    tables.add(link.name, _set(number), plain)

    def change(self, link: Link, wanted: Needs, admitted: Mapping[str, Sequence[IpAddress]] = NOBODY) -> None:
        """Let other traffic through, from one packet to the next; of names, those `admitted` alone."""
        with self._lock:
            # One text is one transaction (nft(8)): no packet meets a missing chain.
            text = filter_text(link, wanted, admitted)
            self._of(link).run(f"delete table netdev {link.name}\n{text}")

    def remove(self, link: Link) -> None:
        """Remove a link, if the sandbox's end has not taken it along already."""
        with self._lock:
            self._drop(link)

    def close(self) -> None:
        """Remove the tables."""
        with self._lock:
            self._leave()

    def sweep(self) -> None:
        """Undo what dead agents left."""
        with self._lock:
            self._forwarding.sweep()

    def _of(self, link: Link) -> Tables:
        """The tables, where the link's is among them."""
        if self._tables is None or link.name not in self._live:
            raise SandboxError("the sandbox's link is gone")
        return self._tables

    def _leave(self) -> None:
        """Nothing is linked: the host is as it was."""
        if self._tables:
            self._tables.close()
        self._tables = None
        self._forwarding.off()

    def _ready(self) -> Tables:
        if self._tables is None:
            self._tables = Tables()
            name = f"{PREFIX}{os.getpid():x}-all-{next(_numbers)}"
            self._tables.run(masquerade_text(name, self._forwarding.on(_uplinks())))
        return self._tables

    def _pair(self, link: Link, namespace: int) -> None:
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            with IPRoute() as route:
                peer = {"ifname": INSIDE, "net_ns_fd": namespace}
                route.link("add", ifname=link.name, kind="veth", peer=peer)
                index = route.link_lookup(ifname=link.name)[0]
                _sysctl(f"ipv6/conf/{link.name}/disable_ipv6", "1")
                route.addr("add", index=index, address=link.gateway, prefixlen=31)
                route.link("set", index=index, state="up")
                _sysctl(f"ipv4/conf/{link.name}/forwarding", "1")
        except NetlinkError as error:
            raise SandboxError(f"cannot make the sandbox's link: {os.strerror(error.code)}") from error

    def _inside(self, link: Link, namespace: int) -> None:
        spec = Specification()
        spec.add(Op.ADDRESS, 2, INSIDE, link.inside, link.gateway)
        self._launcher.run(spec, [namespace]).close()

    def _drop(self, link: Link) -> None:
        from pyroute2 import IPRoute

        with contextlib.suppress(Exception), IPRoute() as route:
            for index in route.link_lookup(ifname=link.name):
                route.link("del", index=index)
        if self._tables:
            with contextlib.suppress(SandboxError):
                self._tables.run(f"delete table netdev {link.name}\n")
        self._live.discard(link.name)
        if not self._live:
            self._leave()


def filter_text(link: Link, wanted: Needs, admitted: Mapping[str, Sequence[IpAddress]] = NOBODY) -> str:
    """nft(8) commands: what may come out of the sandbox's end. `admitted`: names and their addresses."""
    named = [] if wanted.open else enumerate(wanted.named)
    lines = [
        f"table netdev {link.name} {{", "flags owner",
        *(_set_of(number, rule, admitted) for number, rule in named), "chain out {",
        f'type filter hook ingress device "{link.name}" priority 0; policy drop;',
        "ether type arp accept", f"ip saddr != {link.inside} drop",
    ]  # fmt: skip
    lines += ["ip version 4 accept"] if wanted.open else [*_accepted(wanted.rules), *_by_name(wanted.named)]
    return "\n".join([*lines, "}", "}"]) + "\n"


def _accepted(rules: Iterable[NetRule]) -> list[str]:
    lines = []
    for rule in rules:
        if not rule.prefix.startswith(_MAPPED) or rule.length < 96:
            if rule.length:
                continue  # IPv6, which the link does not carry
            target = "0.0.0.0/0"
        else:
            target = f"{ipaddress.IPv4Address(rule.prefix[12:])}/{rule.length - 96}"
        lines.append(_accept(target, rule))
    return lines


def _by_name(rules: Sequence[EgressRule]) -> list[str]:
    nowhere = ipaddress.ip_network("0.0.0.0/32")
    return [
        _accept(f"@{_set(number)}", flat)
        for number, rule in enumerate(rules)
        for flat in compiler.flat(rule, nowhere)
    ]


def _accept(target: str, rule: NetRule) -> str:
    protocol = _PROTOCOLS.get(rule.protocol)
    words = f"ip daddr {target}"
    if protocol:
        words += f" {protocol} dport {rule.port_low}-{rule.port_high}"
    elif (rule.port_low, rule.port_high) != (0, 65535):
        words += f" meta l4proto {{ tcp, udp }} th dport {rule.port_low}-{rule.port_high}"
    return f"{words} accept"


def _set(number: int) -> str:
    """The set of the addresses of a rule by name."""
    return f"n{number}"


def _set_of(number: int, rule: EgressRule, admitted: Mapping[str, Sequence[IpAddress]]) -> str:
    about = [some for name, some in admitted.items() if names.matches(rule.target, name)]
    plain = dict.fromkeys(str(one) for some in about for one in some if one.version == 4)
    elements = f" elements = {{ {', '.join(plain)} }};" if plain else ""
    return f"set {_set(number)} {{ type ipv4_addr;{elements} }}"


def masquerade_text(name: str, only_ours: bool) -> str:
    """nft(8) commands: sandboxes speak with the host's address. `only_ours`: nothing else was forwarded
    before, and nothing else shall be now."""
    between = f'iifname "{PREFIX}*" oifname "{PREFIX}*" drop'
    lines = [
        f"table ip {name} {{", "flags owner",
        "chain post {", "type nat hook postrouting priority srcnat;",
        f'ip saddr {NETWORK} oifname != "{PREFIX}*" masquerade', "}",
        "chain forward {", "type filter hook forward priority filter;", between,
    ]  # fmt: skip
    if only_ours:
        lines.append(f'iifname != "{PREFIX}*" oifname != "{PREFIX}*" drop')
    return "\n".join([*lines, "}", "}"]) + "\n"


def _uplinks() -> set[str]:
    """Links that carry a default route, or any route where there is none (proc(5), /proc/net/route)."""
    rows = [line.split() for line in Path("/proc/self/net/route").read_text().splitlines()[1:]]
    chosen = {row[0] for row in rows if row[1] == "00000000"} or {row[0] for row in rows}
    return {name for name in chosen if not name.startswith(PREFIX)}


def _sysctl(name: str, value: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/sys/net", name).write_text(value)
