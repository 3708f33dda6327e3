"""What the agent and its clients say to each other: one packet, one message, with descriptors beside it.

A SOCK_SEQPACKET Unix socket keeps the borders of messages. A message is a JSON object; one that is too long
for a packet travels in a memory file whose descriptor goes first. Bytes that are not UTF-8 (paths, arguments)
are Python's surrogate escapes, which JSON carries as `\\udcXX`.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

PROTOCOL = 1
INLINE_MAX_BYTES = 64 << 10
MESSAGE_MAX_BYTES = 256 << 20
DESCRIPTORS_MAX = 8
_ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)


class WireError(Exception):
    """The other side said something that is no message."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message's body, and the descriptors that came with it (the receiver's to close)."""

    body: dict[str, Any]
    descriptors: tuple[int, ...] = ()

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class Channel:
    """One end of a connection, used from one event loop."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._sending = asyncio.Lock()

    def peer(self) -> tuple[int, int, int]:
        """(pid, uid, gid) of the other end as the kernel knows it."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, gid = struct.unpack("3i", raw)
        return pid, uid, gid

    async def send(self, body: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message; the descriptors stay the caller's. OSError where the other side is gone."""
        raw = json.dumps(body, separators=(",", ":")).encode()
        async with self._sending:
            if len(raw) <= INLINE_MAX_BYTES:
                await self._send_packet(b"J" + raw, descriptors)
            else:
                with _memory_file(raw) as file:
                    await self._send_packet(b"M", [file, *descriptors])

    async def receive(self) -> Message | None:
        """The next message, or None where the other side has closed."""
        while True:
            try:
                raw, ancillary, flags, _ = self._socket.recvmsg(
                    INLINE_MAX_BYTES + 2, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                await ready(self._socket.fileno(), reading=True)
                continue
            except ConnectionResetError:
                return None
            break
        descriptors = _descriptors(ancillary)
        if not raw:
            return None
        return _message(raw, descriptors, cut=bool(flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    async def _send_packet(self, packet: bytes, descriptors: Sequence[int]) -> None:
        ancillary = []
        if descriptors:
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors)))
        while True:
            try:
                self._socket.sendmsg([packet], ancillary, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                await ready(self._socket.fileno(), reading=False)
                continue
            return


async def ready(descriptor: int, *, reading: bool) -> None:
    """Wait until a descriptor can be read from, or written to."""
    loop = asyncio.get_running_loop()
    able: asyncio.Future[None] = loop.create_future()
    watch, unwatch = (
        (loop.add_reader, loop.remove_reader) if reading else (loop.add_writer, loop.remove_writer)
    )
    watch(descriptor, _settle, able)
    try:
        await able
    finally:
        unwatch(descriptor)


def _settle(able: asyncio.Future[None]) -> None:
    if not able.done():
        able.set_result(None)


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        yield descriptor
    finally:
        os.close(descriptor)


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return found.tolist()


def _message(raw: bytes, descriptors: Sequence[int], *, cut: bool) -> Message:
    kept = list(descriptors)
    try:
        if cut:
            raise WireError("a packet was cut")
        if raw[:1] == b"M":
            if not kept:
                raise WireError("a long message came without its memory file")
            file = kept.pop(0)
            try:
                raw = _read_memory_file(file)
            finally:
                os.close(file)
        elif raw[:1] == b"J":
            raw = raw[1:]
        else:
            raise WireError("a packet is neither a message nor a memory file")
        body = json.loads(raw)
        if not isinstance(body, dict):
            raise WireError("a message is a JSON object")
    except (WireError, ValueError) as error:
        Message({}, tuple(kept)).close()
        raise WireError(str(error)) from error
    return Message(body, tuple(kept))


def _read_memory_file(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if size > MESSAGE_MAX_BYTES:
        raise WireError(f"a message of {size} bytes; at most {MESSAGE_MAX_BYTES} are taken")
    content = bytearray()
    while len(content) < size and (part := os.pread(descriptor, min(size, 1 << 24), len(content))):
        content += part
    return bytes(content)
