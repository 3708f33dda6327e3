"""The three pipes of a command whose output is collected rather than shown."""

from __future__ import annotations

import asyncio
import contextlib
import os

from invigilator.guard.wire import ready

READ_BYTES = 1 << 16


class Pipes:
    """What the command reads is `content`; what it writes is collected.

    `theirs` are its ends, (stdin, stdout, stderr), to be closed with `close_theirs` once it has them."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._ours: list[int] = []
        self._tasks: list[asyncio.Task[bytes]] = []
        self._feeding: asyncio.Task[None] | None = None
        self.theirs: list[int] = []

    async def __aenter__(self) -> Pipes:
        stdin, feed = os.pipe()
        out, stdout = os.pipe()
        err, stderr = os.pipe()
        self._ours, self.theirs = [out, err], [stdin, stdout, stderr]
        self._feeding = asyncio.create_task(_feed(feed, self._content))
        self._tasks = [asyncio.create_task(_collect(descriptor)) for descriptor in (out, err)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close_theirs()
        tasks = [task for task in (self._feeding, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for descriptor in self._ours:
            os.close(descriptor)

    def close_theirs(self) -> None:
        """Close our copies of the command's ends, so that its end shows."""
        for descriptor in self.theirs:
            os.close(descriptor)
        self.theirs = []

    async def collected(self) -> tuple[bytes, bytes]:
        """All of standard output and standard error, once nobody can write to them any more."""
        out, err = await asyncio.gather(*self._tasks)
        return out, err


async def _feed(descriptor: int, content: bytes) -> None:
    os.set_blocking(descriptor, False)
    left = memoryview(content)
    try:
        with contextlib.suppress(BrokenPipeError):
            while left:
                try:
                    left = left[os.write(descriptor, left) :]
                except BlockingIOError:
                    await ready(descriptor, reading=False)
    finally:
        os.close(descriptor)


async def _collect(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    collected = bytearray()
    while True:
        try:
            part = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            await ready(descriptor, reading=True)
            continue
        if not part:
            return bytes(collected)
        collected += part
