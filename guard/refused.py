"""Refusals of a sandbox's seccomp filter where no audit record tells of them: by the calls' own events.

A call that the filter refuses always answers the filter's errno, and the sensor sees the answer. That is told
of the calls that the sensor follows; of others nothing is, so the class `denial` is not claimed.
"""

from __future__ import annotations

import errno
import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from invigilator.ebpf.events import Abi, EventBatch, EventClass, Kind, Phase, Tier
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.denials import EMITTED_MAX
from invigilator.guard.denied import ABSENT
from invigilator.profiles import seccomp
from invigilator.profiles.policy import PhaseName, Policy

NUMBERS = 1024
"""Past every system call's number (asm/unistd_64.h ends below 500)."""
_PHASES: Mapping[int, PhaseName] = {
    Phase.UNKNOWN: "agent",
    Phase.SETUP: "setup",
    Phase.AGENT: "agent",
    Phase.VERIFY: "verify",
}


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a filter answers. `always`: by number, -errno, 0 where it lets the call pass or decides by more
    than the number; `names` by number; `namespaces`: calls refused with CLONE_NEWUSER."""

    always: npt.NDArray[np.int64]
    names: Mapping[int, str]
    namespaces: frozenset[int]
    foreign: bool

    @property
    def codes(self) -> set[int]:
        """Results that a refused call can have."""
        own = set(self.always[self.always != 0].tolist())
        return (
            own
            | ({-errno.EPERM} if self.namespaces else set())
            | ({-errno.ENOSYS} if self.foreign else set())
        )


class RefusedCalls:
    """Tells of the sandboxes that it is told of. Stands where `Denials` does."""

    claimed = False

    def __init__(self, sensor: Sensor) -> None:
        self._sensor = sensor
        self._lock = threading.Lock()
        self._answers: dict[int, Mapping[int, _Answers]] = {}
        self._codes: frozenset[int] = frozenset()

    def watch(self, slot: int, cgroups: Mapping[int, Phase], policy: Policy) -> None:
        """Tell of refusals in this sandbox from now on, and by this policy."""
        text = policy.model_dump_json()
        answers = {phase: _answers(text, name) for phase, name in _PHASES.items()}
        with self._lock:
            self._answers[slot] = answers
            self._codes = self._codes.union(*(one.codes for one in answers.values()))

    def forget(self, slot: int) -> None:
        """Tell of this sandbox no more."""
        with self._lock:
            self._answers.pop(slot, None)

    def settle(self) -> bool:
        """All that was drained has been told of."""
        return True

    def whole(self, slot: int) -> bool:
        """Not: calls that the sensor does not follow are refused unseen."""
        return False

    def step(self, batch: EventBatch) -> None:
        """Tell what of a drain's events was refused."""
        with self._lock:
            possible = np.isin(batch.column("result"), list(self._codes))
            if not possible.any():
                return
            left = EMITTED_MAX
            for slot, part in batch.select(possible).by_slot():
                if answers := self._answers.get(slot):
                    left -= self._tell(slot, part, answers, left)

    def close(self) -> None:
        """Nothing is held."""

    def _tell(self, slot: int, batch: EventBatch, by_phase: Mapping[int, _Answers], most: int) -> int:
        told = 0
        for phase in np.unique(batch.column("phase")).tolist():
            answers = by_phase[phase]
            rows = batch.records[(batch.column("phase") == phase) & _refused(batch.records, answers)]
            _, first, counts = np.unique(
                rows[["pid", "start_ns", "abi", "nr"]], return_index=True, return_counts=True
            )
            for at, count in list(zip(first.tolist(), counts.tolist(), strict=True))[: most - told]:
                self._emit(slot, rows[at], count, answers)
                told += 1
        return told

    def _emit(self, slot: int, row: np.void, count: int, answers: _Answers) -> None:
        number = int(row["nr"])
        foreign = int(row["abi"]) != Abi.NATIVE
        name = answers.names.get(number, str(number))
        text = f"syscall number={int(row['a0'])} abi=foreign" if foreign else f"syscall {name}"
        self._sensor.emit(
            slot,
            Kind.DENIAL,
            text=text.encode(),
            result=int(row["result"]),
            a0=count,
            a1=int(row["seq"]),
            class_=int(EventClass.DENIAL),
            tiers=int(Tier.SECCOMP),
            pid=int(row["pid"]),
            tid=int(row["tid"]),
            start_ns=int(row["start_ns"]),
            step=int(row["step"]),
            phase=int(row["phase"]),
            origin_phase=int(row["origin_phase"]),
        )


def _refused(records: npt.NDArray[np.void], answers: _Answers) -> npt.NDArray[np.bool_]:
    """Which of the failed calls the filter refused."""
    number, result = records["nr"], records["result"]
    native = (records["abi"] == Abi.NATIVE) & (number < NUMBERS)
    always = native & (answers.always[np.minimum(number, NUMBERS - 1)] == result)
    asked = (records["kind"] == Kind.UNSHARE) & (records["a0"] & np.uint64(seccomp.CLONE_NEWUSER) != 0)
    namespaces = native & asked & np.isin(number, list(answers.namespaces)) & (result == -errno.EPERM)
    foreign = (records["kind"] == Kind.FOREIGN_ABI) & answers.foreign
    found: npt.NDArray[np.bool_] = always | namespaces | foreign
    return found


@functools.lru_cache(maxsize=64)
def _answers(policy_json: str, phase: PhaseName) -> _Answers:
    always, names = np.zeros(NUMBERS, np.int64), {}
    namespaces, foreign = set(), False
    for refusal in seccomp.build(Policy.model_validate_json(policy_json), phase).refusals:
        call, _, condition = refusal.call.partition("(")
        foreign = foreign or refusal.where == ("syscalls", "foreign_abi")
        number = seccomp.number(call)
        if number is None or not 0 <= number < NUMBERS:
            continue
        # What programs ask for and do without is no denial.
        if not condition and refusal.errno not in ABSENT:
            always[number], names[number] = -refusal.errno, call
        elif refusal.where == ("syscalls", "userns"):
            namespaces.add(number)
            names[number] = call
    return _Answers(always, names, frozenset(namespaces), foreign)
