"""The name servers that the guard asks: this machine's, or those that the node's setting names."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VARIABLE = "INVIGILATOR_NAMESERVERS"
"""Name servers to ask instead of this machine's: `ADDRESS`, `ADDRESS:PORT` or `[V6]:PORT`, by commas."""
LIFETIME_S = 4.0
"""How long one name may take: less than a sandbox's own resolver waits (5 s, resolv.conf(5))."""
PROBE_S = 1.0
PORT = 53


class SettingError(OSError):
    """The setting cannot be read; the message says what to write."""


class NoSuchName(Exception):
    """The name servers know no such name."""


@dataclass(frozen=True, slots=True)
class Server:
    """A name server."""

    address: str
    port: int = PORT

    def __str__(self) -> str:
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{shown}:{self.port}"


def servers(environment: Mapping[str, str] = os.environ) -> Sequence[Server]:
    """The name servers of the node's setting; none: this machine's are asked. `SettingError`."""
    words = [word.strip() for word in environment.get(VARIABLE, "").split(",")]
    return [_server(word) for word in words if word]


def lookup(name: str) -> Sequence[str]:
    """The addresses of a name, as the node's name servers have them now; OSError where there are none."""
    chosen = servers()
    if not chosen:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return _ask(name, chosen)


def _ask(name: str, chosen: Sequence[Server]) -> Sequence[str]:
    import dns.exception
    import dns.resolver

    asking = dns.resolver.Resolver(configure=False)
    configure(asking, chosen)
    try:
        found = asking.resolve_name(name, lifetime=LIFETIME_S, search=False)
    except dns.exception.DNSException as error:
        raise OSError(f"{', '.join(map(str, chosen))}: {error}") from error
    return list(dict.fromkeys(found.addresses()))


def reachable() -> tuple[Sequence[Server], bool]:
    """The name servers that are asked, and whether one of them answers at all."""
    import dns.exception
    import dns.message
    import dns.query
    import dns.resolver

    chosen = servers()
    if not chosen:
        try:
            listed = dns.resolver.Resolver().nameservers
        except dns.exception.DNSException:
            listed = []
        chosen = [Server(str(one)) for one in listed]
    question = dns.message.make_query(".", "NS")
    for one in chosen:
        with contextlib.suppress(dns.exception.DNSException, OSError):
            dns.query.udp(question, one.address, PROBE_S, one.port)
            return chosen, True
    return chosen, False


def configure(asking: object, chosen: Sequence[Server]) -> None:
    """Let a resolver of dnspython's ask these servers."""
    import dns.nameserver

    asking.nameservers = [dns.nameserver.Do53Nameserver(one.address, one.port) for one in chosen]  # type: ignore[attr-defined]


def _server(word: str) -> Server:
    host, _, port = word.rpartition(":") if word.count(":") == 1 or "]:" in word else (word, "", str(PORT))
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number = int(port)
        if not 0 < number < 65536:
            raise ValueError
    except ValueError:
        raise SettingError(
            f"{VARIABLE}: {word!r} is no name server; write ADDRESS, ADDRESS:PORT or [V6]:PORT"
        ) from None
    return Server(str(address), number)
