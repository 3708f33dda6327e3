"""A refusal in words and as an event: what was asked, of whom, and whether it is one at all."""

from __future__ import annotations

import errno
import functools
import os
from dataclasses import dataclass
from typing import Self

import numpy as np

from invigilator.ebpf.events import EventClass, Kind, Tier
from invigilator.ebpf.sensor import Sensor
from invigilator.profiles import seccomp
from invigilator.profiles.policy import Policy
from invigilator.profiles.seccomp import Refusal as FilterRefusal
from invigilator.sandbox.audit import Refusal

ABSENT = (errno.ENOSYS, errno.EAFNOSUPPORT, errno.EOPNOTSUPP)
"""A call that a filter answers so is one that the kernel seems not to have: programs ask, and do without."""
X32 = 1 << 30
"""The bit of x32's numbers (asm/unistd.h), which events do without."""
NATIVE = {"x86_64": b"c000003e", "aarch64": b"c00000b7"}
"""AUDIT_ARCH of this machine (linux/audit.h), as records have it."""


@dataclass(frozen=True, slots=True)
class Own:
    """A call's own event."""

    seq: int = 0
    tid: int = 0
    start_ns: int = 0
    step: int = 0
    phase: int = 0
    origin: int = 0

    @classmethod
    def of(cls, record: np.void) -> Self:
        """Of a record as the sensor hands it out."""
        names = ("seq", "tid", "start_ns", "step", "phase", "origin_phase")
        return cls(*(int(record[name]) for name in names))


@dataclass(frozen=True, slots=True)
class Denial:
    """A process's calls, `count` of them, that a tier refused; `own` is the first's event. `allowed`: that
    would have been refused, where the tier only complains."""

    text: bytes
    tier: Tier
    result: int
    pid: int
    own: Own
    count: int = 1
    path: bytes = b""
    path2: bytes = b""
    allowed: bool = False

    def tell(self, sensor: Sensor, slot: int) -> None:
        """Put it into a sandbox's record."""
        sensor.emit(
            slot,
            Kind.DENIAL,
            path=self.path,
            path2=self.path2,
            text=self.text,
            result=self.result,
            a0=self.count,
            a1=self.own.seq,
            a2=int(self.allowed),
            pid=self.pid,
            tid=self.own.tid,
            start_ns=self.own.start_ns,
            step=self.own.step,
            phase=self.own.phase,
            origin_phase=self.own.origin,
            class_=int(EventClass.DENIAL),
            tiers=int(self.tier),
        )


def text_of(refusal: Refusal, policy: Policy) -> bytes | None:
    """What was refused, in words; None for a call that programs do without."""
    fields = refusal.fields
    if refusal.tier == "apparmor":
        kept = ("requested_mask", "denied_mask", "capname", "family", "sock_type", "peer", "info", "comm")
        words = [fields.get("operation", b"?")]
        words += [name.encode() + b"=" + fields[name] for name in kept if name in fields]
        return b" ".join(words)
    number = int(fields.get("syscall", b"-1"))
    if fields.get("arch") != NATIVE.get(os.uname().machine) or number >= X32:
        return b"syscall number=%d abi=foreign comm=%s" % (number, fields.get("comm", b""))
    name = _call_name(number)
    if name in _done_without(seccomp.build(policy, "agent").refusals):
        return None
    return b"syscall %s comm=%s" % (name.encode(), fields.get("comm", b""))


@functools.lru_cache(maxsize=512)
def _call_name(number: int) -> str:
    import seccomp as library

    try:
        found = library.resolve_syscall(library.Arch(), number)
    except (ValueError, RuntimeError):
        return str(number)
    return str(found.decode() if isinstance(found, bytes) else found)


@functools.lru_cache(maxsize=16)
def _done_without(refusals: tuple[FilterRefusal, ...]) -> frozenset[str]:
    """Calls that a filter answers as a kernel without them would, and never otherwise."""
    answers: dict[str, set[int]] = {}
    for refusal in refusals:
        answers.setdefault(refusal.call.partition("(")[0], set()).add(refusal.errno)
    return frozenset(name for name, codes in answers.items() if codes <= set(ABSENT))
