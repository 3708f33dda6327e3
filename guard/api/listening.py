"""Where `guard serve` listens: the home's Unix socket, and TCP. Off loopback nothing goes in the clear."""

from __future__ import annotations

import ipaddress
import socket

from invigilator.guard.api.start import ServeSettings
from invigilator.guard.errors import GuardError
from invigilator.guard.home import Home, short_address

BACKLOG = 1024


def listen_locally(home: Home) -> socket.socket:
    """The home's Unix socket."""
    path = home.serve_socket
    path.unlink(missing_ok=True)
    local = socket.socket(socket.AF_UNIX)
    with short_address(path) as address:
        local.bind(address)
    # Everybody may connect: who they are is asked of the kernel, what they may is asked of their token.
    path.chmod(0o666)
    local.listen(BACKLOG)
    return local


def listen_tcp(settings: ServeSettings) -> list[socket.socket]:
    """The listening TCP socket that was asked for, if one was. GuardError where tokens would travel in the
    clear between machines, unless that was asked for too."""
    if settings.listen is None:
        return []
    host, port = settings.listen
    family, address = resolve(host, port)
    if settings.tls is None and not settings.insecure_plaintext and not is_loopback(address):
        fix = "give --tls-cert and --tls-key, or listen on 127.0.0.1"
        raise GuardError("tokens would travel in the clear", where=f"{host}:{port}", fix=fix)
    link = socket.socket(family)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        link.bind((address, port))
    except OSError as error:
        raise GuardError(f"cannot listen: {error.strerror}", where=f"{host}:{port}") from None
    link.listen(BACKLOG)
    return [link]


def resolve(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """The family and the address, in numbers, of a host; `localhost` is 127.0.0.1 whatever its names say."""
    if host == "localhost":
        return socket.AF_INET, "127.0.0.1"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise GuardError(f"no such address: {error.strerror}", where=f"{host}:{port}") from None
    family, _, _, _, address = found[0]
    return family, str(address[0])


def is_loopback(address: str) -> bool:
    """Whether nobody but this machine reaches the address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
