"""One rollout in the foreground of a terminal or a script: streams, signals, phases, verdict, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass

from invigilator.guard.errors import GuardError
from invigilator.guard.link import Request
from invigilator.guard.order import CommandOrder, CommandResult
from invigilator.guard.sdk import Sandbox
from invigilator.incidents.records import Report

FAILED_CODE = 125
"""The guard itself failed, as env, nohup and timeout of coreutils say it."""
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
INTERRUPTS_MAX = 3
"""A command that has not ended after so many interrupts is ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `setup` and `verify` are shell commands of the platform; their output goes to stderr."""

    command: Sequence[str]
    setup: str | None = None
    verify: str | None = None
    timeout_s: float | None = None
    tty: bool = False
    environment: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it: the exit status to end with, the verdict, why the store is behind, if it is, and why
    some of the command's output could not be written, if so."""

    code: int
    report: Report
    notice: str | None
    lost_output: str | None


class Foreground:
    """Runs a plan in a sandbox; signals that this process gets, the command gets."""

    def __init__(self, box: Sandbox, plan: Plan) -> None:
        self._box = box
        self._plan = plan
        self._current: Request | None = None
        self._interrupted: int | None = None
        self._interrupts = 0
        self._output_error = 0
        self._signals: set[asyncio.Task[None]] = set()

    async def run(self) -> Outcome:
        """The whole rollout."""
        with self._handlers():
            async with self._box:
                try:
                    return await self._phases()
                except asyncio.CancelledError:
                    raise
                except GuardError as error:
                    return await self._failed(error)

    async def _phases(self) -> Outcome:
        plan = self._plan
        if plan.setup is not None:
            await self._box.phase("setup")
            done = await self._platform(plan.setup)
            if done.code and self._interrupted is None:
                return await self._conclude(
                    FAILED_CODE, f"the setup command ended with exit status {done.code}"
                )
        await self._box.phase("agent")
        done = await self._agent()
        if plan.verify is not None and self._interrupted is None:
            await self._box.phase("verify")
            await self._platform(plan.verify)
        return await self._conclude(done.code, None)

    async def _failed(self, error: GuardError) -> Outcome:
        """The agent refused something; while it lives, the rollout's verdict says so."""
        try:
            return await self._conclude(FAILED_CODE, str(error))
        except GuardError:
            raise error from None

    async def _conclude(self, code: int, failure: str | None) -> Outcome:
        """An interrupted rollout is no verdict on the agent, but the exit status stays the command's own; so
        it does where its output is lost, as script(1) has it."""
        if self._interrupted is not None:
            failure = failure or f"interrupted by {signal.Signals(self._interrupted).name}"
        report = await self._box.verdict(failure=failure)
        failed = report.failure is not None and self._interrupted is None
        lost = os.strerror(self._output_error) if self._output_error else None
        return Outcome(FAILED_CODE if failed else code, report, self._box.notice, lost)

    async def _agent(self) -> CommandResult:
        plan = self._plan
        rows, columns = _size()
        environment = dict(plan.environment or {})
        if plan.tty:
            environment.setdefault("TERM", os.environ.get("TERM", "dumb"))
        order = CommandOrder(
            command=list(plan.command),
            timeout_s=plan.timeout_s,
            actor="agent",
            environment=environment,
            tty=plan.tty,
            rows=rows,
            columns=columns,
        )
        with _raw_terminal() if plan.tty else contextlib.nullcontext():
            return await self._execute(order, (0, 1, 2))

    async def _platform(self, command: str) -> CommandResult:
        order = CommandOrder(
            command=command, actor="platform", environment=dict(self._plan.environment or {})
        )
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return await self._execute(order, (nothing, 2, 2))
        finally:
            os.close(nothing)

    async def _execute(self, order: CommandOrder, streams: Sequence[int]) -> CommandResult:
        if self._interrupted is not None:
            return CommandResult(code=128 + self._interrupted, reason="signalled")
        self._current = await self._box.start(order, streams)
        try:
            result = await self._box.finish(self._current)
        finally:
            self._current = None
        self._output_error = self._output_error or result.output_error
        return result

    @contextlib.contextmanager
    def _handlers(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
        try:
            yield
        finally:
            for number in (*FORWARDED, signal.SIGWINCH):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            self._interrupted = number
            self._interrupts += 1
        if self._current is None:
            return
        if self._interrupts > INTERRUPTS_MAX:
            self._spawn(self._box.cancel(self._current))
        else:
            self._spawn(self._box.signal(self._current, number))

    def _on_resize(self) -> None:
        if self._current is not None and self._plan.tty:
            self._spawn(self._box.resize(self._current, *_size()))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(_quietly(work))
        self._signals.add(task)
        task.add_done_callback(self._signals.discard)


async def _quietly(work: Awaitable[None]) -> None:
    """The command may have ended meanwhile."""
    with contextlib.suppress(GuardError):
        await work


def _size() -> tuple[int, int]:
    for descriptor in (1, 0, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(descriptor)
            return size.lines or 24, size.columns or 80
    return 24, 80


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Keys go to the sandbox's own pseudo-terminal, which makes signals of them."""
    descriptor = sys.stdin.fileno() if sys.stdin is not None else 0
    if not os.isatty(descriptor):
        yield
        return
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
