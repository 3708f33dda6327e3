"""One client of the agent: its connection, its sandbox, its commands.

A connection has at most one sandbox, which does not outlive it, or has joined one of another connection: then
it may run commands in it and begin phases, and takes away only its own commands when it goes. Each request
`{"op", "id", …}` gets one answer with its `id`, `{"id", "ok": {…}}` or
`{"id", "error": {"kind", "message"}}`, whichever ends first.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from invigilator.guard.attachment import Attachment, Target
from invigilator.guard.errors import GuardError
from invigilator.guard.order import CommandOrder, SandboxOrder
from invigilator.guard.progress import Running
from invigilator.guard.rollout import Rollout
from invigilator.guard.services import Services
from invigilator.guard.wire import PROTOCOL, Channel, Message, WireError
from invigilator.incidents.spool import SpoolError
from invigilator.profiles.policy import Policy
from invigilator.sandbox.base import SandboxError

_log = logging.getLogger("invigilator.session")

KILL_AFTER_S = 2.0
"""Between the TERM and the KILL of a command that its caller has given up."""

UNKNOWN_CODE = 125
"""Of a command that its client went away from."""

Body = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Floor:
    """What sessions work with. `makers` runs what starts processes, in threads that live as long as the
    agent: a launcher dies with the thread that made it. `waiters` runs what waits. `find` gives the live
    rollout of an id."""

    services: Services
    makers: Executor
    waiters: Executor
    find: Callable[[str], Rollout]
    admit: Callable[[], None]
    status: Callable[[], Mapping[str, Any]]
    end_agent: Callable[[], None]


class Session:
    """Serves one connection until it closes."""

    def __init__(self, floor: Floor, channel: Channel) -> None:
        self._floor = floor
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._rollout: Rollout | None = None
        self._joined: Rollout | None = None
        self._announced = False
        self._commands: dict[int, asyncio.Future[Running]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ttl: asyncio.TimerHandle | None = None
        self._operations: dict[str, Callable[[Body, tuple[int, ...]], Awaitable[Body]]] = {
            "create": self._create,
            "attach": self._attach,
            "await_end": self._await_end,
            "announce": self._announce,
            "conclude": self._conclude,
            "join": self._join,
            "phase": self._phase,
            "policy": self._policy,
            "exec": self._exec,
            "signal": self._signal,
            "resize": self._resize,
            "cancel": self._cancel,
            "write_file": self._write_file,
            "read_file": self._read_file,
            "verdict": self._verdict,
            "close": self._close,
            "status": self._status,
            "shutdown": self._shutdown,
        }

    @property
    def rollout(self) -> Rollout | None:
        """The connection's rollout."""
        return self._rollout

    async def serve(self) -> None:
        """Answer until the client closes, then end what it left."""
        try:
            await self._channel.send({"hello": PROTOCOL})
            while (message := await self._channel.receive()) is not None:
                task = asyncio.create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except (WireError, OSError) as error:
            _log.warning("a connection ended: %s", error)
        finally:
            await self._leave()

    async def _answer(self, message: Message) -> None:
        number, name = message.body.get("id"), message.body.get("op")
        try:
            operation = self._operations.get(str(name))
            if operation is None:
                raise GuardError(
                    f"the agent knows no operation {name!r}", fix="client and agent differ in version"
                )
            answer: Body = {"id": number, "ok": await operation(message.body, message.descriptors)}
        except Exception as error:
            answer = {"id": number, "error": _describe(error)}
        finally:
            message.close()
        try:
            await self._channel.send(answer)
        except OSError:
            _log.debug("nobody hears the answer to %s", name)

    async def _create(self, body: Body, _: tuple[int, ...]) -> Body:
        self._require_unused()
        order = SandboxOrder.model_validate(body["order"])
        self._floor.admit()
        rollout = self._rollout = Rollout(self._floor.services, order)
        began = time.monotonic()
        await self._make(rollout.open)
        self._ttl = self._loop.call_later(order.policy.limits.ttl_s, self._expire)
        return {
            "sandbox_id": str(rollout.sandbox_id),
            "rollout_id": order.rollout_id,
            "enforcement": dict(rollout.enforcement),
            "took_s": time.monotonic() - began,
        }

    async def _attach(self, body: Body, _: tuple[int, ...]) -> Body:
        self._require_unused()
        order = SandboxOrder.model_validate(body["order"])
        self._floor.admit()
        target = Target(str(body["cgroup"]), bool(body["make"]), body["phase"], str(body["container"]))
        attachment = self._rollout = Attachment(self._floor.services, order, target)
        try:
            await self._make(attachment.open)
        except BaseException:
            self._rollout = None
            raise
        return {
            "sandbox_id": str(attachment.sandbox_id),
            "rollout_id": order.rollout_id,
            "cgroup": attachment.place,
            "whole": attachment.whole,
        }

    async def _await_end(self, _: Body, __: tuple[int, ...]) -> Body:
        return {"ended": await self._wait(self._need_attachment().wait_end)}

    async def _join(self, body: Body, _: tuple[int, ...]) -> Body:
        self._require_unused()
        rollout = self._joined = self._floor.find(str(body["rollout"]))
        container = rollout.container if isinstance(rollout, Attachment) else None
        return {
            "sandbox_id": str(rollout.sandbox_id),
            "rollout_id": rollout.order.rollout_id,
            "container": container,
        }

    async def _announce(self, body: Body, _: tuple[int, ...]) -> Body:
        order, attachment = CommandOrder.model_validate(body["order"]), self._need_attachment()
        await self._wait(lambda: attachment.announce(order))
        self._announced = True
        return {}

    async def _conclude(self, body: Body, _: tuple[int, ...]) -> Body:
        attachment, code = self._need_attachment(), int(body["code"])
        self._announced = False
        await self._wait(lambda: attachment.conclude(code))
        return {}

    async def _phase(self, body: Body, _: tuple[int, ...]) -> Body:
        rollout, joined = self._need(), self._joined is not None
        await self._wait(lambda: rollout.begin(body["phase"], by_another=joined))
        return {}

    async def _policy(self, body: Body, _: tuple[int, ...]) -> Body:
        rollout = self._need()
        policy = Policy.model_validate(body["policy"])
        changed = await self._make(lambda: rollout.change_policy(policy))
        return {"rollout_id": rollout.order.rollout_id, "change": changed.model_dump(mode="json")}

    async def _exec(self, body: Body, descriptors: tuple[int, ...]) -> Body:
        rollout, number = self._need(), int(body["id"])
        order = CommandOrder.model_validate(body["order"])
        stdin, stdout, stderr = descriptors
        if self._joined is not None:
            rollout.require_phase()
        # From before the start: a command may have been heard of, and be signalled, before its start returns.
        started = self._commands[number] = self._loop.create_future()
        try:
            running = await self._make(lambda: rollout.execute(order, stdin, stdout, stderr))
            started.set_result(running)
            await self._channel.send({"id": number, "event": "started", "pid": running.process.pid})
            result = await self._wait(lambda: rollout.wait(running))
            if self._joined is not None and rollout.judged and result.reason == "signalled":
                raise GuardError("the rollout ended, and the command with it")
            return result.model_dump()
        finally:
            del self._commands[number]
            started.cancel()

    async def _signal(self, body: Body, _: tuple[int, ...]) -> Body:
        if running := await self._command(body):
            running.process.signal(int(body["signal"]))
        return {}

    async def _resize(self, body: Body, _: tuple[int, ...]) -> Body:
        if running := await self._command(body):
            running.process.resize(int(body["rows"]), int(body["columns"]))
        return {}

    async def _cancel(self, body: Body, _: tuple[int, ...]) -> Body:
        if running := await self._command(body):
            self._end(int(body["exec"]), running)
        return {}

    async def _write_file(self, body: Body, _: tuple[int, ...]) -> Body:
        rollout = self._need()
        content = base64.b64decode(body["content"])
        await self._make(lambda: rollout.write_file(body["path"], content, int(body["mode"])))
        return {}

    async def _read_file(self, body: Body, _: tuple[int, ...]) -> Body:
        rollout = self._need()
        content = await self._make(lambda: rollout.read_file(body["path"]))
        return {"content": base64.b64encode(content).decode()}

    async def _verdict(self, body: Body, _: tuple[int, ...]) -> Body:
        rollout = self._need_own()
        if why := body.get("failure"):
            rollout.fail(str(why))
        report = await self._wait(rollout.verdict)
        late = report.events.shipped < report.events.stored
        notice = self._floor.services.shipper.trouble or "the store is behind" if late else None
        return {"report": report.model_dump(mode="json"), "notice": notice}

    async def _close(self, _: Body, __: tuple[int, ...]) -> Body:
        rollout = self._need_own()
        await self._wait(lambda: self.abandon(rollout, "it was left without asking for the verdict"))
        return {}

    async def _status(self, _: Body, __: tuple[int, ...]) -> Body:
        return dict(self._floor.status())

    async def _shutdown(self, _: Body, __: tuple[int, ...]) -> Body:
        self._floor.end_agent()
        return {}

    def _require_unused(self) -> None:
        if self._rollout is not None or self._joined is not None:
            raise GuardError("this connection has a sandbox already", fix="open another connection")

    def _need(self) -> Rollout:
        if (rollout := self._rollout or self._joined) is None:
            raise GuardError("this connection has no sandbox yet")
        return rollout

    def _need_attachment(self) -> Attachment:
        if not isinstance(rollout := self._need(), Attachment):
            raise GuardError("the guard is not attached to the rollout's sandbox, it made it")
        return rollout

    def _need_own(self) -> Rollout:
        if self._joined is not None:
            raise GuardError("only who began the rollout ends it")
        return self._need()

    def _expire(self) -> None:
        if self._rollout is not None:
            self._loop.run_in_executor(self._floor.waiters, self._rollout.expire)

    async def _command(self, body: Body) -> Running | None:
        """The command that a request is about; None where it has ended, or never began."""
        started = self._commands.get(int(body["exec"]))
        if started is None:
            return None
        await asyncio.wait([started])
        return None if started.cancelled() else started.result()

    def _end(self, number: int, running: Running) -> None:
        running.process.signal(signal.SIGTERM)
        self._loop.call_later(KILL_AFTER_S, self._kill, number, running)

    def _kill(self, number: int, running: Running) -> None:
        if number in self._commands:
            running.process.signal(signal.SIGKILL)

    async def _make(self, action: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._floor.makers, action)

    async def _wait(self, action: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._floor.waiters, action)

    async def _leave(self) -> None:
        """The client is gone. What it did not ask a verdict for is reported as failed."""
        if self._ttl is not None:
            self._ttl.cancel()
        self._channel.close()
        if self._announced:
            await self._wait(lambda: self._need_attachment().conclude(UNKNOWN_CODE))
        if self._joined is not None:
            for number, started in list(self._commands.items()):
                if started.done() and not started.cancelled():
                    self._end(number, started.result())
        if self._rollout is not None:
            rollout = self._rollout
            await self._wait(lambda: self.abandon(rollout, "the client went away before the verdict"))

    @staticmethod
    def abandon(rollout: Rollout, why: str) -> None:
        """Judge a rollout as failed if nobody has asked for its verdict, and remove it."""
        if not rollout.judged:
            rollout.fail(why)
            try:
                rollout.verdict()
            except Exception:
                _log.exception("rollout %s could not be judged", rollout.order.rollout_id)
        rollout.close()


def _describe(error: Exception) -> Body:
    """An error as a client is told of it."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return {"kind": "order", "message": f"{where}: {first['msg']}"}
    if isinstance(error, GuardError | SandboxError | SpoolError):
        full = os.strerror(errno.ENOSPC) in str(error) and "free " not in str(error)
        fix = "; free some on the state folder's disk" if full else ""
        return {"kind": type(error).__name__, "message": f"{error}{fix}"}
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        _log.exception("a request failed")
        where = error.filename2 or error.filename or "the state folder"
        return {"kind": "space", "message": f"no space left for {os.fsdecode(where)}; free some on its disk"}
    if isinstance(error, KeyError | ValueError | TypeError | OSError):
        _log.exception("a request failed")
        return {"kind": type(error).__name__, "message": f"{type(error).__name__}: {error}"}
    _log.exception("a request failed")
    return {
        "kind": "internal",
        "message": f"unexpected {type(error).__name__}: {error} (see the agent's log)",
    }
