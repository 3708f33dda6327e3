"""Refusals that the kernel tells of by audit records become events of the sandbox that they happened in.

A record names a process, and the path or the call that it was refused; the denial says the `seq` of the
sensor's own event of the same call: the first of that process and name that ended after the record was
written, and that no earlier record of the kind was joined with. All of this is done by the pipeline's thread,
which calls `step` after each drain; sandboxes come and go in others.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from invigilator.ebpf.events import EventBatch, Phase, Tier
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.denied import X32, Denial, Own, text_of
from invigilator.profiles.apparmor import PREFIX
from invigilator.profiles.policy import Policy
from invigilator.sandbox.audit import AuditReader, Refusal

_log = logging.getLogger("invigilator.denials")

STEPS = 2
"""Drains that a record waits for: its call's own event may come with the next one, or the one after."""
KEPT_S = 5.0
"""How long events are kept to be joined with records that come later than they."""
KEPT_ROWS = 20_000
JOINED_KEPT = 10_000
"""Kinds of refusals, by process and name, of which the last joined event is remembered."""
PIDS = 1 << 22
"""More process numbers than any kernel has (PID_MAX_LIMIT, linux/threads.h)."""
NEAR_NS = 1_000_000_000
"""From a record to its call's end: milliseconds, more on a machine that is short of processors."""
KEPT_RESULTS = (-errno.EACCES, -errno.EPERM, -errno.ENOSYS)
EMITTED_MAX = 500
"""Denials made events by one step; more of them are left out, and their class is degraded."""
MARK_S = 20.0
_SUBJECT = PREFIX.encode()


@dataclass(slots=True)
class _Watched:
    """`policies`: with the time since boot from which each was in force, the newest last."""

    phases: Mapping[int, Phase]
    policies: list[tuple[int, Policy]]
    lost_before: int
    left_out_before: int

    def policy_at(self, time_ns: int) -> Policy:
        held = [policy for since_ns, policy in self.policies if since_ns <= time_ns]
        return held[-1] if held else self.policies[0][1]


@dataclass(slots=True)
class _Waiting:
    refusal: Refusal
    slot: int | None
    phase: Phase
    steps: int = 0


class Denials:
    """Joins and tells the refusals of the sandboxes that it is told of."""

    claimed = True
    """Whether every refusal of its sandboxes is told, but for what `whole` denies."""

    def __init__(self, sensor: Sensor, reader: AuditReader, cgroups: Path) -> None:
        """`cgroups`: where the v2 hierarchy is mounted."""
        self._sensor, self._reader, self._cgroups = sensor, reader, cgroups
        self._watched: dict[int, _Watched] = {}
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._recent: deque[tuple[float, EventBatch]] = deque()
        self._slots = np.zeros(PIDS, np.int32)
        self._phases = np.zeros(PIDS, np.uint8)
        self._joined: dict[tuple[int, int, str, bytes, bytes], int] = {}
        self._left_out = 0
        self._marks = self._reached = reader.mark

    def watch(self, slot: int, cgroups: Mapping[int, Phase], policy: Policy) -> None:
        """Tell of refusals in these cgroups from now on."""
        with self._changed:
            self._watched[slot] = _Watched(cgroups, [(0, policy)], self._reader.lost(), self._left_out)

    def change(self, slot: int, policy: Policy, since_ns: int, *, alone: bool) -> None:
        """From a time since boot on this policy is in force. `alone`: no process is under a former one's."""
        with self._changed:
            self._watched[slot].policies.append((since_ns, policy))

    def forget(self, slot: int) -> None:
        """Tell of this sandbox no more."""
        with self._changed:
            self._watched.pop(slot, None)
            self._joined = {key: seq for key, seq in self._joined.items() if key[0] != slot}

    def settle(self) -> bool:
        """Wait until all that was refused by now has become events; False where that takes too long."""
        with self._changed:
            self._marks += 1
            mark = self._marks
            with contextlib.suppress(OSError):
                self._reader.set_mark(mark)
            self._sensor.nudge()
            return self._changed.wait_for(lambda: self._reached >= mark, MARK_S)

    def whole(self, slot: int) -> bool:
        """Whether no refusal since the sandbox was watched was lost, or could not be told whose it was."""
        with self._changed:
            watched = self._watched[slot]
            lost = self._reader.lost() > watched.lost_before
            return not lost and self._left_out == watched.left_out_before

    def step(self, batch: EventBatch) -> None:
        """Take what has come: the events of a drain (they may be none), and the records until now."""
        with self._changed:
            self._remember(batch)
            # All from before a mark that the last step met has its own events here by now.
            due, seen = self._reader.mark > self._reached, self._reader.mark
            ready = [one for one in self._waiting if due or one.steps >= STEPS]
            self._waiting = [one for one in self._waiting if not (due or one.steps >= STEPS)]
            for refusal in self._reader.read():
                if _concerns_us(refusal):
                    slot, phase = self._sandbox_of(refusal.pid)
                    self._waiting.append(_Waiting(refusal, slot, phase))
            for one in self._waiting:
                one.steps += 1
            self._left_out += max(0, len(ready) - EMITTED_MAX)
            for one in ready[:EMITTED_MAX]:
                self._tell(one)
            self._reached = seen
            self._changed.notify_all()

    def close(self) -> None:
        """Read no more."""
        self._reader.close()

    def _remember(self, batch: EventBatch) -> None:
        now = time.monotonic()
        if len(batch):
            records = batch.records
            self._slots[records["pid"]], self._phases[records["pid"]] = records["slot"], records["phase"]
            refused = np.isin(records["result"], KEPT_RESULTS)
            self._recent.append((now, batch.select(refused)))
        while len(self._recent) > 2 * STEPS and (
            now - self._recent[0][0] > KEPT_S or sum(len(kept) for _, kept in self._recent) > KEPT_ROWS
        ):
            self._recent.popleft()

    def _sandbox_of(self, pid: int) -> tuple[int | None, Phase]:
        """By the cgroup of a process that still is."""
        try:
            words = Path(f"/proc/{pid}/cgroup").read_text()
            found = re.search(r"^0::(/.*)$", words, re.M)
            number = os.stat(f"{self._cgroups}{found[1]}").st_ino if found else 0  # noqa: PTH116
        except OSError:
            return None, Phase.UNKNOWN
        for slot, watched in self._watched.items():
            if number in watched.phases:
                return slot, watched.phases[number]
        return None, Phase.UNKNOWN

    def _tell(self, one: _Waiting) -> None:
        refusal = one.refusal
        # A process that is gone is known by its events: no other sandbox has had its number since.
        slot = one.slot if one.slot is not None else int(self._slots[refusal.pid])
        if (watched := self._watched.get(slot)) is None:
            if not self._left_out:  # the first alone: there may be many
                _log.warning(
                    "a refusal in no sandbox that is known: process %d, %s", refusal.pid, refusal.fields
                )
            self._left_out += refusal.count
            return
        policy = watched.policy_at(refusal.time_ns)
        text = text_of(refusal, policy)
        # Where refusals are in force, what is only told of is a wish of the profile's own, and no refusal.
        if text is None or (refusal.allowed and policy.mode != "observe"):
            return
        # The calls that are kept were refused: what was let through is joined to none of them.
        own = Own() if refusal.allowed else self._own_event(slot, refusal)
        phase = own.phase or int(one.phase) or int(self._phases[refusal.pid])
        by_apparmor = refusal.tier == "apparmor"
        Denial(
            text,
            Tier.APPARMOR if by_apparmor else Tier.SECCOMP,
            result=0 if refusal.allowed else -(errno.EACCES if by_apparmor else errno.EPERM),
            pid=refusal.pid,
            own=replace(own, phase=phase, origin=own.origin or phase),
            count=refusal.count,
            path=refusal.name,
            path2=refusal.fields.get("target", refusal.fields.get("srcname", b"")),
            allowed=refusal.allowed,
        ).tell(self._sensor, slot)

    def _own_event(self, slot: int, refusal: Refusal) -> Own:
        """The refused call's event: by its name; where none has it, by the last part of it, since a file may
        have other ways to it; or else the only one that can be meant."""
        # One call may be refused more than once, as an overlay's: each of its operations has its own turn.
        told, operation = refusal.fields.get("syscall", refusal.name), refusal.fields.get("operation", b"")
        key = (slot, refusal.pid, refusal.tier, told, operation)
        joined = self._joined.pop(key, 0)
        named: list[Own] = []
        alike: list[Own] = []
        others: list[Own] = []
        for _, batch in self._recent:
            records = batch.records
            after = records["time_ns"].astype(np.int64) - refusal.time_ns
            possible = (records["slot"] == slot) & (records["pid"] == refusal.pid) & (records["seq"] > joined)
            rows = records[possible & (after >= 0) & (after < NEAR_NS)]
            meant = _named(rows, batch.strings, refusal)
            named += map(Own.of, np.sort(rows[meant], order="seq")[: refusal.count])
            others += map(Own.of, rows[~meant][:2])
            if refusal.tier == "apparmor":
                near = _named(rows, batch.strings, refusal, _last_part)
                alike += map(Own.of, np.sort(rows[near], order="seq")[: refusal.count])
        if refusal.tier == "apparmor" and not named:
            named = alike or (others if len(others) == 1 else [])
        # Of equal records the first is here, and the others stand for the events that follow.
        found = sorted(named, key=lambda one: one.seq)[: refusal.count]
        self._joined[key] = found[-1].seq if found else joined
        while len(self._joined) > JOINED_KEPT:
            del self._joined[next(iter(self._joined))]
        return found[0] if found else Own()


def _last_part(path: bytes) -> bytes:
    """What is behind the last slash."""
    return path.rpartition(b"/")[2]


def _named(
    rows: npt.NDArray[np.void],
    strings: Sequence[bytes],
    refusal: Refusal,
    part: Callable[[bytes], bytes] = bytes,
) -> npt.NDArray[np.bool_]:
    """Which events are of the call or of the path that the record names, or of that part of it."""
    if refusal.tier == "seccomp":
        same: npt.NDArray[np.bool_] = rows["nr"] == int(refusal.fields.get("syscall", b"-1")) & ~X32
        return same
    found, name = np.zeros(len(rows), np.bool_), part(refusal.name)
    for field in ("path", "path2") if name else ():
        codes, which = np.unique(rows[field], return_inverse=True)
        found |= np.fromiter((part(strings[code]) == name for code in codes), np.bool_, len(codes))[which]
    return found


def _concerns_us(refusal: Refusal) -> bool:
    return refusal.fields.get("profile", refusal.fields.get("subj", b"")).startswith(_SUBJECT)
