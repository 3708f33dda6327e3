"""The agent's side of the launcher: one zygote process, and requests to it.

The zygote ends when its control socket closes: it and all sandboxes end with this process, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from invigilator.sandbox.base import SandboxError, UnavailableError
from invigilator.sandbox.spec import NO_SLOT, Slot, Specification

_START, _RUN, _EXEC = 1, 2, 3
_REPLY = struct.Struct("<iII5I")
_F_ADD_SEALS, _SEALS = 1033, 0x1 | 0x2 | 0x4 | 0x8
REPLY_TIMEOUT_S = 30.0
SHARES = ("namespaces", "mounts", "trees", "pivot", "files")
"""`enum share` of `launcher.h`."""


class LauncherError(SandboxError):
    """An operation of the launcher failed; `errno` is the kernel's."""

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


@dataclass(slots=True)
class Handles:
    """Descriptors that reach into a sandbox, by slot; closed by `close`. `spent`: the launcher's seconds by
    kind of operation."""

    fds: dict[Slot, int]
    spent: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, slot: Slot) -> int:
        return self.fds[slot]

    def close(self, *, but: Slot | None = None) -> None:
        """Close all, but one; idempotent."""
        for slot in [slot for slot in self.fds if slot is not but]:
            os.close(self.fds.pop(slot))


class Launcher:
    """The zygote of one agent. Thread-safe."""

    def __init__(self, binary: Path, cgroups: Sequence[Path]) -> None:
        """`binary`: see `build.launcher`. `cgroups`: folders that the zygote removes in the end."""
        self._binary = binary
        self._cgroups = cgroups
        self._lock = threading.Lock()
        self._process, self._control = self._spawn()

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        image = _sealed("init", self._binary.read_bytes())
        os.fchmod(image, 0o500)
        try:
            process = subprocess.Popen(
                ["guard-launcher", str(theirs.fileno()), *map(str, self._cgroups)],
                executable=f"/proc/self/fd/{image}",
                pass_fds=(theirs.fileno(), image),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={},
            )
        finally:
            os.close(image)
            theirs.close()
        return process, ours

    def _renew(self) -> None:
        """Replace a zygote that was killed: its sandboxes ended with it, but new ones must not be refused."""
        if not self.alive:
            self._control.close()
            self._process, self._control = self._spawn()

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can still launch."""
        return self._process.poll() is None

    def start(self, spec: Specification, init_cgroup: int, fds: Sequence[int] = ()) -> Handles:
        """Make a sandbox; OP_ATTACH counts `fds` from 3."""
        return self._ask(_START, spec, [init_cgroup, *fds])

    def run(self, spec: Specification, fds: Sequence[int] = ()) -> Handles:
        """Run operations in a mount namespace of their own; OP_JOIN counts `fds` from 2."""
        return self._ask(_RUN, spec, fds)

    def execute(self, spec: Specification, fds: Sequence[int]) -> socket.socket:
        """Start a command; the socket speaks with its pump."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._send(_EXEC, theirs, spec, fds)
            except BaseException:
                ours.close()
                raise
        return ours

    def close(self, timeout_s: float = 10.0) -> None:
        """End the zygote and everything that it launched."""
        self._control.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)

    def _send(self, kind: int, reply: socket.socket, spec: Specification, fds: Sequence[int]) -> None:
        image = os.memfd_create("spec", os.MFD_CLOEXEC)
        try:
            _write_all(image, spec.data)
            with self._lock:
                if kind != _EXEC:
                    self._renew()
                head = struct.pack("<II", kind, len(fds))
                socket.send_fds(self._control, [head], [reply.fileno(), image, *fds])
        except OSError as error:
            raise LauncherError(f"the launcher is gone ({error.strerror}): run it again") from error
        finally:
            os.close(image)

    def _ask(self, kind: int, spec: Specification, fds: Sequence[int]) -> Handles:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                self._send(kind, theirs, spec, fds)
            ours.settimeout(REPLY_TIMEOUT_S)
            try:
                data, received, flags, _ = socket.recv_fds(ours, _REPLY.size, 16)
            except TimeoutError as error:
                raise LauncherError("the launcher did not answer in time") from error
        try:
            return _handles(spec, data, received, cut=bool(flags & socket.MSG_CTRUNC))
        except BaseException:
            for fd in received:
                os.close(fd)
            raise


def _handles(spec: Specification, data: bytes, received: Sequence[int], *, cut: bool) -> Handles:
    if len(data) != _REPLY.size:
        raise LauncherError("the sandbox's init ended while it was being made")
    code, op, slots, *spent = _REPLY.unpack(data)
    if code:
        raise _failure(spec, op, code)
    if cut:  # the kernel hands over as many as there is room for
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    names = [slot for slot in Slot if slots >> slot & 1]
    seconds = {name: nanoseconds / 1e9 for name, nanoseconds in zip(SHARES, spent, strict=True)}
    return Handles(dict(zip(names, received, strict=True)), seconds)


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """An OSError of this process, inside, is told as what could not be done, and what to do about it."""
    try:
        yield
    except OSError as error:
        raise _cannot(what, error) from error


def _cannot(what: str, error: OSError) -> SandboxError:
    if error.errno != errno.EMFILE:
        return LauncherError(f"cannot {what}: {error.strerror}", error.errno or 0)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LauncherError(
        f"cannot {what}: this process has all the {limit} descriptors that it may have: run fewer sandboxes"
        " at once, or raise the limit (ulimit -n) where the agent is started",
        errno.EMFILE,
    )


def _failure(spec: Specification, op: int, code: int) -> SandboxError:
    what = spec.describe(op)
    words = what.split()
    if code == errno.EINVAL and words[0] == "tree" and words[-1] != str(NO_SLOT):
        return UnavailableError(
            f"the file system of {words[2]} cannot map ids (ext4, xfs and btrfs can, overlay and NFS cannot):"
            " put it on one that can"
        )
    return LauncherError(f"cannot make the sandbox: {what}: {os.strerror(code)}", code)


def _sealed(name: str, content: bytes) -> int:
    """A memory file that nobody can change any more: what runs inside is never a file of the host."""
    image = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    _write_all(image, content)
    fcntl.fcntl(image, _F_ADD_SEALS, _SEALS)
    return image


def _write_all(fd: int, content: bytes | bytearray) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
