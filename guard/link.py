"""A client's end of the agent's socket: requests, their answers in any order, and the agent's death."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from invigilator.guard.errors import GuardError, MissingError, NotFoundError, RefusedError, UnreachableError
from invigilator.guard.home import Home
from invigilator.guard.node import agent_connection, running_agent
from invigilator.guard.wire import PROTOCOL, Channel

HELLO_TIMEOUT_S = 60.0
TRIES = 3
"""An agent may end for idleness between the connect and its hello."""


class AgentGoneError(UnreachableError):
    """The agent ended, and with it the sandbox."""


class SandboxFailedError(GuardError):
    """The sandbox could not be made, entered or kept: an infrastructure failure, never the agent's doing."""

    exit_code = 4


_ERRORS: dict[str, type[GuardError]] = {
    "order": RefusedError,
    "RefusedError": RefusedError,
    "NotFoundError": NotFoundError,
    "RolloutError": RefusedError,
    "UnavailableError": MissingError,
}


@dataclass(slots=True)
class Request:
    """A request under way: `started` is set by the event of that name, `answer` by the end."""

    number: int
    answer: asyncio.Future[dict[str, Any]]
    started: asyncio.Event = field(default_factory=asyncio.Event)


class Link:
    """One connection to this node's agent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._requests: dict[int, Request] = {}
        self._numbers = itertools.count(1)
        self._gone: Exception | None = None
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, home: Home, *, start: bool = True) -> Link:
        """Connect; where no agent runs, it is started, or not `start`ed and that is a NotFoundError."""
        for _ in range(TRIES):
            connect = agent_connection if start else running_agent
            channel = Channel(await asyncio.to_thread(connect, home))
            try:
                message = await asyncio.wait_for(channel.receive(), HELLO_TIMEOUT_S)
            except BaseException as error:
                channel.close()
                if isinstance(error, TimeoutError):
                    raise UnreachableError(
                        "the agent does not answer", where=str(home.agent_socket)
                    ) from error
                raise
            if message is not None and message.body.get("hello") == PROTOCOL:
                return cls(channel)
            channel.close()
            if message is not None:
                raise UnreachableError("the running agent is of another version", fix="end it: guard down")
        raise UnreachableError("the agent ends as soon as it is reached", where=str(home.run / "agent.log"))

    async def begin(self, op: str, body: dict[str, Any], descriptors: Sequence[int] = ()) -> Request:
        """Send a request; its answer comes with `finish`."""
        if self._gone is not None:
            raise self._gone
        request = Request(next(self._numbers), asyncio.get_running_loop().create_future())
        self._requests[request.number] = request
        try:
            await self._channel.send({"op": op, "id": request.number, **body}, descriptors)
        except OSError as error:
            self._requests.pop(request.number, None)
            raise self._lost() from error
        return request

    async def finish(self, request: Request) -> dict[str, Any]:
        """A request's answer, or the error that it ended with."""
        try:
            return await request.answer
        finally:
            self._requests.pop(request.number, None)

    async def ask(self, op: str, **body: Any) -> dict[str, Any]:
        """A request and its answer."""
        return await self.finish(await self.begin(op, body))

    async def close(self) -> None:
        """End the connection; the agent then removes its sandbox."""
        self._listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listener
        self._channel.close()

    async def _listen(self) -> None:
        try:
            while (message := await self._channel.receive()) is not None:
                message.close()
                self._take(message.body)
        finally:
            self._gone = self._lost()
            for request in self._requests.values():
                if not request.answer.done():
                    request.answer.set_exception(self._gone)
                request.started.set()

    def _take(self, body: dict[str, Any]) -> None:
        request = self._requests.get(int(body.get("id") or 0))
        if request is None or request.answer.done():
            return
        if body.get("event") == "started":
            request.started.set()
        elif "error" in body:
            request.answer.set_exception(_error(body["error"]))
            request.started.set()
        else:
            request.answer.set_result(body["ok"])
            request.started.set()

    def _lost(self) -> Exception:
        return AgentGoneError("the agent has ended, and the sandbox with it", fix="run it again")


def _error(described: dict[str, str]) -> Exception:
    kind, message = described.get("kind", ""), described.get("message", "")
    return _ERRORS.get(kind, SandboxFailedError)(message)
