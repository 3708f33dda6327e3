"""Commands in a container that the guard is attached to: run by its runtime, recorded with actor and step."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Iterator, Sequence

from invigilator.guard.attending import FORWARDED
from invigilator.guard.errors import GuardError, MissingError
from invigilator.guard.joined import Joined
from invigilator.guard.order import CommandOrder

FAILED_CODE = 125


async def execute(box: Joined, order: CommandOrder) -> int:
    """Run it by `docker exec` on this process's streams; its exit status."""
    if order.timeout_s is not None:
        raise GuardError(
            "a command in a container that is only watched cannot be ended from here",
            where="--timeout",
            fix="give it a time in the container: timeout 60 CMD",
        )
    words = docker_exec(box.container, order)
    if shutil.which(words[0]) is None:
        raise MissingError("no docker command is here to run it by", fix="apt-get install docker.io")
    await box.announce(order)
    code = FAILED_CODE
    try:
        process = await asyncio.create_subprocess_exec(*words)
        with _forwarded(process):
            code = await process.wait()
    finally:
        await asyncio.shield(box.concluded(code))
    return 128 - code if code < 0 else code


def docker_exec(container: str, order: CommandOrder) -> Sequence[str]:
    """The `docker exec` of an order."""
    words = ["docker", "exec", "--interactive"]
    if order.tty:
        words.append("--tty")
    for name, value in order.environment.items():
        words += ["--env", f"{name}={value}"]
    if order.cwd is not None:
        words += ["--workdir", order.cwd]
    return [*words, container, *map(os.fsdecode, order.arguments())]


@contextlib.contextmanager
def _forwarded(process: asyncio.subprocess.Process) -> Iterator[None]:
    """Signals that this process gets, `docker exec` gets; a terminal's keys, it has by itself."""
    loop = asyncio.get_running_loop()
    keys = (signal.SIGINT, signal.SIGQUIT) if os.isatty(0) else ()

    def forward(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if number not in keys:
                process.send_signal(number)

    for number in FORWARDED:
        loop.add_signal_handler(number, forward, number)
    try:
        yield
    finally:
        for number in FORWARDED:
            loop.remove_signal_handler(number)
