"""Commands in the foreground of a terminal or a script, with the signals and sizes that this process gets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Iterator, Sequence

from invigilator.guard.box import Box
from invigilator.guard.errors import GuardError
from invigilator.guard.link import Request
from invigilator.guard.order import ActorName, CommandOrder, CommandResult

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


class Attended:
    """Runs one command after another in a box, on descriptors of this process.

    `interrupted` is the last signal that told this process to end: after it no command starts. `output_error`
    is the errno with which a stream took no more of a command's output (0: none).
    """

    def __init__(self, box: Box) -> None:
        self._box = box
        self._current: Request | None = None
        self._tty = False
        self._interrupts = 0
        self._signals: set[asyncio.Task[None]] = set()
        self.interrupted: int | None = None
        self.output_error = 0

    async def execute(self, order: CommandOrder, streams: Sequence[int]) -> CommandResult:
        """Run a command on (stdin, stdout, stderr) to its end."""
        if self.interrupted is not None:
            return CommandResult(code=128 + self.interrupted, reason="signalled")
        self._tty = order.tty
        with raw_terminal() if order.tty else contextlib.nullcontext():
            self._current = await self._box.start(order, streams)
            try:
                result = await self._box.finish(self._current)
            finally:
                self._current = None
        self.output_error = self.output_error or result.output_error
        return result

    @contextlib.contextmanager
    def handlers(self) -> Iterator[None]:
        """Take this process's signals meanwhile."""
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
            self.interrupted = number
            self._interrupts += 1
        if self._current is None:
            return
        if self._interrupts > INTERRUPTS_MAX:
            self._spawn(self._box.cancel(self._current))
        else:
            self._spawn(self._box.signal(self._current, number))

    def _on_resize(self) -> None:
        if self._current is not None and self._tty:
            self._spawn(self._box.resize(self._current, *terminal_size()))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(_quietly(work))
        self._signals.add(task)
        task.add_done_callback(self._signals.discard)


def order_on_streams(
    command: Sequence[str],
    *,
    actor: ActorName | None,
    timeout_s: float | None,
    environment: dict[str, str],
    on_terminal: bool,
    step_id: str | None = None,
    cwd: str | None = None,
) -> CommandOrder:
    """A command on this process's own streams: with a terminal, of its size and kind."""
    rows, columns = terminal_size()
    environment = dict(environment)
    if on_terminal:
        environment.setdefault("TERM", os.environ.get("TERM", "dumb"))
    return CommandOrder(
        command=list(command),
        step_id=step_id,
        timeout_s=timeout_s,
        actor=actor,
        cwd=cwd,
        environment=environment,
        tty=on_terminal,
        rows=rows,
        columns=columns,
    )


async def _quietly(work: Awaitable[None]) -> None:
    """The command may have ended meanwhile."""
    with contextlib.suppress(GuardError):
        await work


def terminal_size() -> tuple[int, int]:
    """(rows, columns) of the terminal that a standard stream is; 24 and 80 where none is one."""
    for descriptor in (1, 0, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(descriptor)
            return size.lines or 24, size.columns or 80
    return 24, 80


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
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
