"""Places to connect to or to listen at, as questions name them: `host:port`, and which rule is about one."""

from __future__ import annotations

import ipaddress
import re

from invigilator.profiles import names, network
from invigilator.profiles.policy import EgressRule

_ENDPOINT = re.compile(
    r"(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:/\[\]]+)):(?P<port>[0-9]{1,5})(?:/(?P<protocol>tcp|udp))?"
)


def endpoint(target: str, lowest: int = 1) -> tuple[str, int, str]:
    """(host, port from `lowest` up, protocol) of a text. ValueError for what is none."""
    match = _ENDPOINT.fullmatch(target)
    if match is None or not lowest <= int(match["port"]) <= 65535:
        raise ValueError(f"`{target}` is no endpoint; write host:port or [v6]:port, with /udp for UDP")
    return match["v6"] or match["host"], int(match["port"]), match["protocol"] or "tcp"


def egress_decides(
    rule: EgressRule, host: str, port: int, protocol: str, resolve: network.Resolver | None
) -> bool:
    """Whether an egress rule is about an endpoint; `resolve` as of `explain`."""
    ports = any(low <= port <= high for low, high in network.port_ranges(rule.ports))
    if not ports or rule.protocol not in ("any", protocol):
        return False
    block = network.target_network(rule.target)
    address = address_of(host)
    if address is None:
        return block is None and names.matches(rule.target, names.canonical(host))
    if block is None:
        return (
            not names.is_wildcard(rule.target)
            and resolve is not None
            and address in {address_of(text) for text in resolve(rule.target)}
        )
    return address in block


def address_of(host: str) -> network.IpAddress | None:
    """The address that a host is, one of IPv4 however it is written; None for a name."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def is_own_loopback(host: str) -> bool:
    """Whether a host stands for the sandbox itself."""
    address = address_of(host)
    return host.lower() == "localhost" if address is None else any(address in own for own in network.LOOPBACK)
