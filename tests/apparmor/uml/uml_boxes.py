"""A sandbox in the guest, and a short way to run commands in it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

from invigilator.sandbox.base import Actor, ExitStatus, Streams
from invigilator.sandbox.process import ProcessSandbox


@dataclass(frozen=True)
class Result:
    status: ExitStatus
    text: str

    @property
    def code(self) -> int:
        return self.status.code


@dataclass
class Box:
    """A started sandbox."""

    sandbox: ProcessSandbox

    def sh(self, script: str, *, timeout_s: float = 60.0, **more: Any) -> Result:
        """Run a script of bash's to its end; standard error comes with the output."""
        return self.run("bash", "-c", script, timeout_s=timeout_s, **more)

    def run(
        self, *command: str, timeout_s: float = 60.0, phase: Any = "agent", actor: Actor = "agent"
    ) -> Result:
        """Run a command to its end."""
        out, into = os.pipe2(os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        parts: list[bytes] = []
        reader = threading.Thread(target=lambda: parts.append(_all(out)))
        try:
            streams = Streams(null, into, into)
            process = self.sandbox.execute(command, phase=phase, streams=streams, actor=actor)
            os.close(into)
            into = -1
            reader.start()
            status = process.wait(timeout_s)
            reader.join(10)
        finally:
            os.close(null)
            if into >= 0:
                os.close(into)
        return Result(status, b"".join(parts).decode(errors="replace"))


def _all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as stream:
        return stream.read()
