"""Block devices for writable layers."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from invigilator.sandbox import kernel
from invigilator.sandbox.base import UnavailableError


@dataclass(slots=True)
class Device:
    """A loop device of so many bytes over a file of its own; it goes with its last user. `fd` is -1 while
    only the file system on it holds it."""

    fd: int
    path: str
    size: int

    @classmethod
    def make(cls, folder: Path, size: int) -> Device:
        """A new one; its file is nameless and lies in `folder`."""
        try:
            image = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(image, size)
                return cls(*kernel.attach_loop(image), size)
            finally:
                os.close(image)
        except OSError as error:
            raise UnavailableError(f"no loop device for the writable layer: {error.strerror}") from error

    def scrub(self) -> bool:
        """All zeros again; whether it is, which it is not while anybody has it mounted."""
        try:
            kernel.scrub(self.fd, self.size)
        except OSError:
            return False
        return True

    def let_go(self) -> None:
        """Hold it no more: whoever else has it, keeps it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def hold(self) -> bool:
        """Hold it again, where that can be; it must have another user meanwhile."""
        with contextlib.suppress(OSError):
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self.fd >= 0
