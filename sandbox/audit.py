"""The kernel's audit records of refusals: AppArmor's and seccomp's, read beside whatever audit daemon runs.

Every record goes to the multicast group of readers (linux/audit.h, AUDIT_NLGRP_READLOG), and nothing is
taken from a daemon. Records can be lost: the kernel counts those that it drops (`lost`), and a reader that is
too slow is told by ENOBUFS (`overruns`).

A record's stamp is of the wall clock, which may be set at any time. What relation it had to the clock that
does not jump is known for the moments at which all records had been read; a record lies between two of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from invigilator.sandbox.base import UnavailableError

_FAMILY, _GROUP = 9, 1
"""NETLINK_AUDIT (linux/netlink.h), AUDIT_NLGRP_READLOG."""
_GET, _USER_AVC, _SECCOMP, _APPARMOR_FIRST, _APPARMOR_LAST = 1000, 1107, 1326, 1500, 1507
_AVC = 1400
"""AppArmor's records have this type, whatever its own numbers (security/apparmor/audit.c)."""
_HEAD = struct.Struct("=IHHII")
_STATUS_LOST = 6
"""Words of struct audit_status (linux/audit.h) before `lost`."""
_ERROR, _REQUEST = 2, 1
RECEIVE_BYTES = 8 << 20
RECORD_MAX = 16 << 10
ANSWER_S = 1.0
FIRST_MARK = 1
HEARD_S = 5.0
RECORDS_MAX = 20_000
DIFFERENT_MAX = 1_000
"""Records taken by one `read`, and how many different ones of them; more of those are counted as lost. Who is
refused much shall not keep the reader from the rest."""
STAMP_NS = 20_000_000
"""How far a stamp may lie behind: it is that of the last tick, of which there are 100 a second or more
(kernel/audit.c, ktime_get_coarse_real_ts64), cut to a millisecond."""
_STAMP = re.compile(rb"^(?:type=\d+ )?audit\((\d+)\.(\d+):(\d+)\): ")
_FIELD = re.compile(rb'([a-z_0-9]+)=(?:"([^"]*)"|([^ \0\n]*))')
_MARK = re.compile(rb"invigilator-mark=([0-9a-f]{16})-(\d+)")
_TOLD = (b"ALLOWED", b"AUDIT")
"""By a profile in complain mode: what its rules do not allow, and what they allow and tell of (`audit`)."""
_TEXTS = frozenset({"name", "target", "srcname", "comm", "exe", "profile", "peer", "info", "operation"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal, or `count` equal ones of which this is the first.

    `tier`: apparmor or seccomp. `allowed`: only told of, where nothing is refused. `time_ns`:
    CLOCK_BOOTTIME, at most `STAMP_NS` before the refusal (of `parse`: of the wall clock). `pid`: in the
    initial namespace. `fields`: as the kernel wrote them, unescaped.
    """

    tier: str
    allowed: bool
    time_ns: int
    pid: int
    fields: dict[str, bytes]
    count: int = 1

    @property
    def operation(self) -> str:
        """What was refused: AppArmor's word for it, or `syscall`."""
        return self.fields.get("operation", b"syscall").decode(errors="replace")

    @property
    def name(self) -> bytes:
        """The object's path or name; empty where there is none."""
        return self.fields.get("name", b"")


@dataclass(frozen=True, slots=True)
class Moment:
    """What two clocks show at once."""

    boot_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> Moment:
        """This moment."""
        return cls(time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns())


def since_boot(wall_ns: int, before: Moment, after: Moment) -> int:
    """When a record of this stamp was written, CLOCK_BOOTTIME: after `before`, when all records until then
    had been read, and before `after`. The wall clock may have been set in between, to and fro: a stamp that
    fits neither moment says nothing, and the earliest time stands."""
    earliest = before.boot_ns - STAMP_NS
    for moment in (after, before):
        found = wall_ns - moment.wall_ns + moment.boot_ns
        if earliest <= found <= after.boot_ns:
            return found
    return earliest


class AuditReader:
    """The refusals of this machine since it was opened. Not thread-safe."""

    def __init__(self) -> None:
        """`UnavailableError` where audit cannot be read here."""
        self.overruns = 0
        self.mark = 0
        """The highest mark that came back: all that was refused before it was set has been read."""
        self._own = os.urandom(8).hex().encode()  # other agents' readers meet these marks too
        self._sockets: list[socket.socket] = []
        self._read_until = Moment.now()
        try:
            self._records = self._open(_GROUP)
            self._control = self._open(0)
            self._control.settimeout(ANSWER_S)
            self._lost_before = self._lost_now()
            heard = self._hears()
        except OSError as error:
            self.close()
            raise UnavailableError(f"the kernel's audit records cannot be read: {error.strerror}") from error
        if not heard:
            self.close()
            raise UnavailableError("the kernel sends its audit records to another network namespace")

    def fileno(self) -> int:
        """For poll: readable where `read` would return something."""
        return self._records.fileno()

    def read(self) -> list[Refusal]:
        """What has come since, without waiting; equal records once, with their number. There may be more."""
        first: dict[tuple[int, bytes], bytes] = {}
        counts: dict[tuple[int, bytes], int] = {}
        began, taken = Moment.now(), 0
        for kind, text in self._messages():
            taken += 1
            if kind == _USER_AVC:
                found = _MARK.search(text)
                if found and found[1] == self._own:
                    self.mark = max(self.mark, int(found[2]))
                continue
            key = kind, _STAMP.sub(b"", text)
            if key in counts:
                counts[key] += 1
            elif len(counts) < DIFFERENT_MAX:
                first[key], counts[key] = text, 1
            else:
                self.overruns += 1
        before, after = self._read_until, Moment.now()
        if taken < RECORDS_MAX:
            self._read_until = began
        parsed = (parse(kind, text, counts[kind, rest]) for (kind, rest), text in first.items())
        return [
            replace(one, time_ns=since_boot(one.time_ns, before, after)) for one in parsed if one is not None
        ]

    def lost(self) -> int:
        """Records lost since it was opened: by the kernel, or because they were read too late."""
        with contextlib.suppress(OSError):
            return self._lost_now() - self._lost_before + self.overruns
        return 1  # whoever cannot ask does not know

    def set_mark(self, number: int) -> None:
        """Put a mark behind the records that there are now; `read` will meet it."""
        text = b"invigilator-mark=%s-%d\0" % (self._own, number)  # the kernel ends the text at its last byte
        self._control.send(_HEAD.pack(_HEAD.size + len(text), _USER_AVC, _REQUEST, number, 0) + text)

    def close(self) -> None:
        """Read no more."""
        while self._sockets:
            self._sockets.pop().close()

    def _hears(self) -> bool:
        """Whether records come at all: they go to the network namespace that the machine began with."""
        self.set_mark(FIRST_MARK)
        waiting = select.poll()
        waiting.register(self.fileno(), select.POLLIN)
        deadline = time.monotonic() + HEARD_S
        while self.mark < FIRST_MARK and (left := deadline - time.monotonic()) > 0:
            if waiting.poll(left * 1000):
                self.read()
        heard, self.mark = self.mark == FIRST_MARK, 0
        return heard

    def _open(self, groups: int) -> socket.socket:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _FAMILY)
        self._sockets.append(made)
        with contextlib.suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BYTES)  # SO_RCVBUFFORCE
        made.bind((0, groups))
        return made

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        for _ in range(RECORDS_MAX):
            try:
                data = self._records.recv(RECORD_MAX, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:  # ENOBUFS: some did not fit
                self.overruns += 1
                continue
            _, kind, _, _, _ = _HEAD.unpack_from(data)
            yield kind, data[_HEAD.size :].rstrip(b"\0\n")

    def _lost_now(self) -> int:
        self._control.send(_HEAD.pack(_HEAD.size, _GET, _REQUEST, 0, 0))
        while True:
            data = self._control.recv(RECORD_MAX)
            _, kind, _, _, _ = _HEAD.unpack_from(data)
            if kind == _GET:
                words = struct.unpack_from(f"={_STATUS_LOST + 1}I", data, _HEAD.size)
                return int(words[_STATUS_LOST])
            if kind == _ERROR and (code := struct.unpack_from("=i", data, _HEAD.size)[0]):
                raise OSError(-code, os.strerror(-code))


def parse(kind: int, text: bytes, count: int = 1) -> Refusal | None:
    """A record as the kernel sends it; None for one that tells of no refusal."""
    stamp = _STAMP.match(text)
    if stamp is None or kind not in (_AVC, _SECCOMP):
        return None
    fields: dict[str, bytes] = {}
    for found in _FIELD.finditer(text, stamp.end()):
        key = found[1].decode()
        quoted, bare = found[2], found[3]
        fields.setdefault(key, quoted if quoted is not None else _unescaped(key, bare))
    verdict = fields.pop("apparmor", b"")
    if kind == _AVC and verdict not in (b"DENIED", *_TOLD):
        return None
    seconds, milliseconds = int(stamp[1]), int(stamp[2])
    return Refusal(
        "seccomp" if kind == _SECCOMP else "apparmor",
        verdict in _TOLD,
        seconds * 1_000_000_000 + milliseconds * 1_000_000,
        int(fields.pop("pid", b"0") or 0),
        fields,
        count,
    )


def _unescaped(key: str, bare: bytes) -> bytes:
    """Text with a quote, a space or a control character comes as hex digits (audit_log_untrustedstring)."""
    if key in _TEXTS:
        with contextlib.suppress(ValueError):
            return bytes.fromhex(bare.decode("ascii", "replace"))
    return bare
