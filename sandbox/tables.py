"""Tables of nftables that belong to this process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from invigilator.sandbox.base import SandboxError, UnavailableError

# linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
_SO_PROTOCOL, _NETLINK_NETFILTER = 38, 12
_REQUEST, _ACK, _CREATE = 0x1, 0x4, 0x400
_BATCH_BEGIN, _BATCH_END, _NEWSETELEM, _ERROR = 0x10, 0x11, 10 << 8 | 12, 2
_SUBSYSTEM, _NETDEV = 10, 5
_TABLE, _SET, _ELEMENTS, _ELEMENT, _KEY, _VALUE, _NESTED = 1, 2, 3, 1, 1, 1, 0x8000
_HEAD, _FAMILY, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BB2s"), struct.Struct("=HH")


class Tables:
    """libnftables with one netlink socket, to which the tables belong. One thread at a time."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libnftables.so.1")
        except OSError as error:
            raise UnavailableError("a policy with egress needs nftables: apt-get install nftables") from error
        self._library.nft_ctx_new.restype = ctypes.c_void_p
        self._library.nft_ctx_free.argtypes = [ctypes.c_void_p]
        self._library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        for name in ("nft_ctx_buffer_error", "nft_ctx_buffer_output", "nft_ctx_get_error_buffer"):
            getattr(self._library, name).argtypes = [ctypes.c_void_p]
        self._library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
        before = set(_sockets())
        self._context = self._library.nft_ctx_new(0)
        if not self._context:
            raise OSError(errno.ENOMEM, "nftables")
        self._library.nft_ctx_buffer_error(self._context)
        made = [one for one in _sockets() if one not in before]
        self._socket = made[0] if len(made) == 1 else None
        self._sequence = 0

    def run(self, text: str) -> None:
        """nft(8) commands; `SandboxError` where one fails."""
        if self._library.nft_run_cmd_from_buffer(self._context, text.encode()) != 0:
            said = self._library.nft_ctx_get_error_buffer(self._context) or b""
            raise SandboxError(f"nftables refuses the link's filter: {said.decode(errors='replace').strip()}")

    def add(self, table: str, name: str, addresses: Sequence[ipaddress.IPv4Address]) -> None:
        """Put addresses into a set of a table of family netdev.

        Said to the kernel directly where the library's socket is known: the library asks for all tables
        first, which with 400 links takes 37 ms.
        """
        if self._socket is None:
            self.run(f"add element netdev {table} {name} {{ {', '.join(map(str, addresses))} }}\n")
            return
        self._sequence += 1
        with socket.socket(fileno=os.dup(self._socket)) as link:
            link.send(_batch(table, name, addresses, self._sequence))
            code = _answer(link, self._sequence)
        if code:
            raise SandboxError(f"nftables refuses an address for the link's filter: {os.strerror(code)}")

    def close(self) -> None:
        """Drop the tables."""
        if self._context:
            self._library.nft_ctx_free(self._context)
        self._context, self._socket = None, None


def _sockets() -> Iterator[int]:
    """Descriptors of this process that are netlink sockets of netfilter."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if entry.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as one:
                    if _is_netfilter(one):
                        yield int(entry.name)


def _is_netfilter(one: socket.socket) -> bool:
    of_netlink = one.family == socket.AF_NETLINK
    return of_netlink and one.getsockopt(socket.SOL_SOCKET, _SO_PROTOCOL) == _NETLINK_NETFILTER


def _batch(table: str, name: str, addresses: Sequence[ipaddress.IPv4Address], sequence: int) -> bytes:
    """One transaction that adds elements, of which the kernel acknowledges the middle."""
    elements = b"".join(
        _attribute(_ELEMENT | _NESTED, _attribute(_KEY | _NESTED, _attribute(_VALUE, one.packed)))
        for one in addresses
    )
    body = _attribute(_TABLE, table.encode() + b"\0") + _attribute(_SET, name.encode() + b"\0")
    body += _attribute(_ELEMENTS | _NESTED, elements)
    subsystem = _SUBSYSTEM.to_bytes(2, "big")
    return b"".join(
        (
            _message(_BATCH_BEGIN, 0, sequence, _FAMILY.pack(0, 0, subsystem)),
            _message(_NEWSETELEM, _ACK | _CREATE, sequence, _FAMILY.pack(_NETDEV, 0, b"\0\0") + body),
            _message(_BATCH_END, 0, sequence, _FAMILY.pack(0, 0, subsystem)),
        )
    )


def _message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    return _HEAD.pack(_HEAD.size + len(body), kind, _REQUEST | flags, sequence, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def _answer(link: socket.socket, sequence: int) -> int:
    """The kernel's word on a message, which is there when it has been sent: 0 or an errno."""
    while True:
        data = link.recv(1 << 16, socket.MSG_DONTWAIT)
        while len(data) >= _HEAD.size:
            length, kind, _, number, _ = _HEAD.unpack_from(data)
            if kind == _ERROR and number == sequence:
                return -int.from_bytes(data[_HEAD.size : _HEAD.size + 4], sys.byteorder, signed=True)
            data = data[max(length + 3 & ~3, _HEAD.size) :]
