"""Uplinks that forward only while some sandbox has a link.

Whoever turns an uplink on writes that down first, in one record for each network namespace of the machine,
and who uses the record holds a shared lock on it. The last user, or after a crash the next agent, finds it
without a lock and turns off what it names: never what forwarded before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

RECORDS = Path("/run/invigilator")
"""Gone after a reboot, as the kernel's settings are."""
_SETTINGS = Path("/proc/sys/net/ipv4/conf")


class Forwarding:
    """One agent's use of the uplinks. Not thread-safe."""

    def __init__(self, records: Path = RECORDS) -> None:
        self._folder = records
        self._record = records / f"forwarding-{Path('/proc/self/ns/net').stat().st_ino}"
        self._held: int | None = None

    def on(self, uplinks: set[str]) -> bool:
        """Let the uplinks forward; whether some did not before any agent asked."""
        with self._alone():
            self._undo_unused()
            if self._held is None:
                self._held = os.open(self._record, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._held, fcntl.LOCK_SH)
            for link in sorted(uplinks):
                if _setting(link) == "0":
                    os.write(self._held, f"{link}\n".encode())
                    (_SETTINGS / link / "forwarding").write_text("1")
            return bool(os.fstat(self._held).st_size)

    def off(self) -> None:
        """This agent needs it no more. Idempotent."""
        if self._held is None:
            return
        with self._alone():
            os.close(self._held)
            self._held = None
            self._undo_unused()

    def sweep(self) -> None:
        """Undo what dead agents left on."""
        if self._record.exists():
            with self._alone():
                self._undo_unused()

    def _undo_unused(self) -> None:
        try:
            record = os.open(self._record, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for link in self._record.read_text().split():
                if _setting(link) == "1":
                    (_SETTINGS / link / "forwarding").write_text("0")
            self._record.unlink()
        except BlockingIOError:
            pass  # an agent uses it
        finally:
            os.close(record)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _setting(link: str) -> str:
    with contextlib.suppress(OSError):
        return (_SETTINGS / link / "forwarding").read_text().strip()
    return ""
