"""The process that speaks DNS: unprivileged, alone with bytes that sandboxes and name servers send.

    python -m invigilator.sandbox.resolver.process CONTROL

CONTROL is a descriptor of a SOCK_SEQPACKET socket to the agent; the process ends when it closes. Messages are
JSON objects. From the agent: `{"add": SANDBOX}` with the sandbox's UDP and TCP socket, `{"drop": SANDBOX}`,
`{"to": N, …}` as the answer to question N. To the agent: `{"sandbox", "n", "name", "family"}` asks what
becomes of a name, with `found` what the name servers say of it, and `{"sandbox", "limit"}` tells that one
asks too fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Coroutine
from typing import Any

from invigilator.sandbox.resolver import BURST, CONTROL_BYTES, RATE_PER_S, upstream, wire
from invigilator.sandbox.resolver.asking import Upstream
from invigilator.sandbox.resolver.confining import confine

UID = 61_501
"""Of the resolver, beside the service's 61,500: a number that nobody has."""
AT_ONCE = 8
"""Questions of one sandbox that are under way, and its connections."""
QUESTIONS_MAX = 8
"""Of one connection, which counts as one question in the rate."""
IDLE_S = 5.0
"""Of a connection without a whole question."""
MEMORY_BYTES = 1 << 30
AGENT_S = 10.0
_PR_SET_NO_NEW_PRIVS = 38
_LENGTH = struct.Struct("!H")


class Agent:
    """The other end of the control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0

    async def ask(
        self, sandbox: int, question: wire.Question, found: list[str] | None = None
    ) -> dict[str, Any]:
        """What becomes of a question, or of what was found. OSError where the agent does not say."""
        self._next += 1
        number = self._next
        told = self._waiting[number] = asyncio.get_running_loop().create_future()
        body: dict[str, Any] = {
            "sandbox": sandbox,
            "n": number,
            "name": question.name,
            "family": question.family,
        }
        try:
            self.tell(body if found is None else {**body, "found": found})
            return await asyncio.wait_for(told, AGENT_S)
        except TimeoutError as error:
            raise OSError("the agent does not answer") from error
        finally:
            del self._waiting[number]

    def tell(self, body: dict[str, Any]) -> None:
        """Send a message; OSError where it cannot be."""
        self._control.send(json.dumps(body).encode())

    def told(self, number: int, body: dict[str, Any]) -> None:
        """The answer to a question has come."""
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(body)


class Station:
    """One sandbox's name server."""

    def __init__(
        self, number: int, udp: socket.socket, tcp: socket.socket, agent: Agent, up: Upstream
    ) -> None:
        self._number, self._udp, self._tcp, self._agent, self._up = number, udp, tcp, agent, up
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tokens, self._filled_at = BURST, time.monotonic()
        self._told_limit = False
        self._closed = False
        for one in (udp, tcp):
            one.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Answer no more."""
        self._closed = True
        self._pause()
        for task in self._tasks:
            task.cancel()
        self._udp.close()
        self._tcp.close()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._udp, self._datagram)
            self._loop.add_reader(self._tcp, self._connection)

    def _pause(self) -> None:
        self._loop.remove_reader(self._udp)
        self._loop.remove_reader(self._tcp)

    def _take(self) -> bool:
        """Whether one more question may be read now; else none is until one may."""
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * RATE_PER_S)
        self._filled_at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return True
        if not self._told_limit:
            self._told_limit = True
            with contextlib.suppress(OSError):
                self._agent.tell({"sandbox": self._number, "limit": "rate"})
        self._pause()
        self._loop.call_later(1 / RATE_PER_S, self._resume)
        return False

    def _resume(self) -> None:
        if len(self._tasks) < AT_ONCE:
            self._listen()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if len(self._tasks) >= AT_ONCE:
            self._pause()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
        self._resume()

    def _datagram(self) -> None:
        if self._take():
            with contextlib.suppress(OSError):
                data, peer = self._udp.recvfrom(wire.QUERY_MAX_BYTES)
                self._run(self._answer_datagram(data, peer))

    async def _answer_datagram(self, data: bytes, peer: Any) -> None:
        answer = await self._answer(data, wire.UDP_MAX_BYTES)
        with contextlib.suppress(OSError):
            if answer:
                self._udp.sendto(answer, peer)

    def _connection(self) -> None:
        if self._take():
            with contextlib.suppress(OSError):
                connection, _ = self._tcp.accept()
                connection.setblocking(False)
                self._run(self._converse(connection))

    async def _converse(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, TimeoutError):
            for _ in range(QUESTIONS_MAX):
                async with asyncio.timeout(IDLE_S):
                    (length,) = _LENGTH.unpack(await self._exactly(connection, _LENGTH.size))
                    data = await self._exactly(connection, min(length, wire.QUERY_MAX_BYTES))
                answer = await self._answer(data, 0xFFFF)
                if answer is None or length > wire.QUERY_MAX_BYTES:
                    return
                async with asyncio.timeout(IDLE_S):
                    await self._loop.sock_sendall(connection, _LENGTH.pack(len(answer)) + answer)

    async def _exactly(self, connection: socket.socket, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = await self._loop.sock_recv(connection, size - len(parts))
            if not part:
                raise ConnectionResetError
            parts += part
        return parts

    async def _answer(self, data: bytes, limit: int) -> bytes | None:
        question = wire.read(data)
        if question is None:
            return wire.malformed(data)
        try:
            said = await self._agent.ask(self._number, question)
            if said["verdict"] == "look":
                found = await self._up.look(question.name, question.family)
                said = await self._agent.ask(self._number, question, found)
        except upstream.NoSuchName:
            return wire.refusal(question, wire.NXDOMAIN)
        except OSError:
            return wire.refusal(question, wire.SERVFAIL)
        if said["verdict"] == "refuse":
            return wire.refusal(question, wire.REFUSED)
        return wire.answer(question, said["addresses"], limit)


class Process:
    """Control messages in, stations."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._agent = Agent(control)
        self._up = Upstream(upstream.servers())
        self._stations: dict[int, Station] = {}
        self._ended = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve until the agent is gone."""
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._message)
        await self._ended

    def _message(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, CONTROL_BYTES, 2)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            if not self._ended.done():
                self._ended.set_result(None)
            return
        body = json.loads(data)
        if "to" in body:
            self._agent.told(body["to"], body)
        elif "add" in body:
            udp, tcp = (socket.socket(fileno=one) for one in descriptors)
            self._stations[body["add"]] = Station(body["add"], udp, tcp, self._agent, self._up)
        elif (station := self._stations.pop(body["drop"], None)) is not None:
            station.close()


def drop_privileges(uid: int = UID) -> None:
    """Nobody, for good, and bounded."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


async def _serve(control: socket.socket) -> None:
    process = Process(control)
    confine()
    await process.run()


def main() -> None:
    """Entry point."""
    control = socket.socket(fileno=int(sys.argv[1]))
    drop_privileges()
    asyncio.run(_serve(control))


if __name__ == "__main__":
    main()
