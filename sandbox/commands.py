"""One command in a sandbox: its streams, its pump, its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from invigilator.sandbox.base import ExitStatus, Process, SandboxError, Streams

_REPORT = struct.Struct("<IiiIQ")
_ORDER = struct.Struct("<Iii")
_STARTED, _FAILED, _STOPPED, _ENDED = 1, 2, 3, 4
_SIGNAL, _RESIZE = 1, 2
_STAGE_CWD, _STAGE_EXEC, _STAGE_PROFILE = 2, 4, 5
_TIOCGPTPEER = 0x5441
Reason = Literal["exited", "signalled", "timeout", "oom", "limit"]
START_TIMEOUT_S = 30.0
POLL_MAX_S = 86_400.0
"""poll(2) counts its milliseconds in 31 bits."""
GRACE_S = 2.0
END_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of a command's streams. `child`: what it gets as 0, 1, 2. `ours`: the pump's ends."""

    child: tuple[int, int, int]
    ours: tuple[int, int, int]

    @property
    def recorded(self) -> Sequence[int]:
        """The objects that the command's output goes to."""
        return tuple(dict.fromkeys(self.child[1:]))

    def close(self) -> None:
        """Close this process's copies."""
        for fd in {*self.child, *self.ours}:
            os.close(fd)


def make_ends(streams: Streams, pts: int, owner: int) -> Ends:
    """Pipes, or a pseudo-terminal of the sandbox's own; they belong to the sandbox's root, so that opening
    /dev/stdout works inside."""
    if streams.tty:
        return _terminal(pts, owner)
    stdin, stdout, stderr = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
    for fd in (stdin[0], stdout[1], stderr[1]):
        os.fchown(fd, owner, owner)
    return Ends((stdin[0], stdout[1], stderr[1]), (stdin[1], stdout[0], stderr[0]))


def _terminal(pts: int, owner: int) -> Ends:
    master = os.open("ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=pts)
    try:
        fcntl.ioctl(master, 0x40045431, struct.pack("i", 0))  # TIOCSPTLCK
        slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        os.close(master)
        raise
    os.fchown(slave, owner, owner + 5)
    return Ends((slave, slave, slave), (master, master, master))


class Command(Process):
    """A command that the launcher started.

    `on_stopped(signal)` is called from `wait` when the command was stopped, as by Ctrl-Z.
    """

    def __init__(
        self,
        control: socket.socket,
        name: str,
        end_all: Callable[[int], None],
        oom_kills: Callable[[], int],
    ) -> None:
        """`end_all(signal)` signals every process of the command's leaf."""
        self.pid = 0
        self.on_stopped: Callable[[int], None] | None = None
        self._control = control
        self._end_all = end_all
        self._oom_kills = oom_kills
        self._oom_before = oom_kills()
        self._status: ExitStatus | None = None
        self._lock = threading.Lock()
        self._timed_out = False
        self.refusal: str | None = None
        self._begin(name)

    def wait(self, timeout_s: float | None = None) -> ExitStatus:
        """See the contract."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while self._status is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    self._end_for_time()
                    break
                self._listen(left)
            assert self._status is not None
            return self._status

    def signal(self, number: int) -> None:
        """See the contract."""
        self._order(_SIGNAL, number, 0)

    def resize(self, rows: int, columns: int) -> None:
        """See the contract."""
        self._order(_RESIZE, rows, columns)

    def poll(self) -> ExitStatus | None:
        """How it ended, where it has."""
        with self._lock:
            while self._status is None and self._readable(0):
                self._listen(0)
            return self._status

    @property
    def ended(self) -> bool:
        """Whether its end is known."""
        return self._status is not None

    def close(self) -> None:
        """Leave the pump to itself; it ends with the last holder of the streams."""
        self._control.close()

    def _begin(self, name: str) -> None:
        self._control.settimeout(START_TIMEOUT_S)
        try:
            report = self._receive()
        except TimeoutError as error:
            raise SandboxError(f"{name}: the launcher did not start it in time") from error
        if report is None:
            raise SandboxError(f"{name}: the launcher ended before the command started")
        kind, value, stage, _, _ = report
        if kind == _STARTED:
            self.pid = value
            return
        what = os.strerror(value)
        if stage == _STAGE_CWD:
            raise SandboxError(f"the working directory: {what}")
        if stage == _STAGE_PROFILE:
            raise SandboxError(f"{name}: the kernel refuses its AppArmor profile: {what}")
        if stage != _STAGE_EXEC:
            raise SandboxError(f"{name}: cannot enter the sandbox (stage {stage}): {what}")
        self.refusal = f"{name}: {'command not found' if value == 2 and '/' not in name else what}"
        if value == 2 and any(sign in name for sign in " |&;<>"):
            self.refusal += "; a line for a shell is run by bash -c 'LINE'"
        self._status = ExitStatus(127 if value == 2 else 126)

    def _order(self, kind: int, a: int, b: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._control.send(_ORDER.pack(kind, a, b), socket.MSG_NOSIGNAL)

    def _receive(self) -> tuple[int, int, int, int, int] | None:
        data = self._control.recv(_REPORT.size)
        return _REPORT.unpack(data) if len(data) == _REPORT.size else None

    def _readable(self, timeout_s: float | None) -> bool:
        poller = select.poll()  # select.select ends at descriptor 1023
        poller.register(self._control, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else min(max(0.0, timeout_s), POLL_MAX_S) * 1000))

    def _listen(self, timeout_s: float | None) -> None:
        if not self._readable(timeout_s):
            return
        report = self._receive()
        if report is None:
            self._status = self._lost()
            return
        kind, value, detail, cut, output = report
        if kind == _STOPPED and self.on_stopped:
            self.on_stopped(value)
        elif kind == _ENDED:
            self._status = self._ended(value, bool(cut), output, detail)
            self._control.close()

    def _ended(self, status: int, cut: bool, output: int, error: int) -> ExitStatus:
        number = status & 0x7F
        code = 128 + number if number else status >> 8 & 0xFF
        reason: Literal["exited", "signalled", "timeout", "oom", "limit"] = (
            "signalled" if number else "exited"
        )
        if self._timed_out:
            reason = "timeout"
        elif (
            number == signal.SIGKILL or code == 128 + signal.SIGKILL
        ) and self._oom_kills() > self._oom_before:
            reason = "oom"
        return ExitStatus(code, number, reason, output, cut, error)

    def _lost(self) -> ExitStatus:
        """The pump is gone, and the command with it: nothing runs unwatched."""
        with contextlib.suppress(OSError, SandboxError):
            self._end_all(signal.SIGKILL)
        if self._timed_out:
            return ExitStatus(128 + signal.SIGKILL, signal.SIGKILL, "timeout")
        raise SandboxError("the launcher of the command was killed")

    def _end_for_time(self) -> None:
        self._timed_out = True
        for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, END_TIMEOUT_S)):
            self._end_all(number)
            deadline = time.monotonic() + patience_s
            while self._status is None and (left := deadline - time.monotonic()) > 0:
                self._listen(left)
            if self._status is not None and number == signal.SIGTERM:
                self._end_all(signal.SIGKILL)
            if self._status is not None:
                return
        raise SandboxError("a command could not be ended")


__all__ = ["Command", "Ends", "make_ends"]
