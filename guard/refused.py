"""Refusals of a sandbox's seccomp filter where no audit record tells of them: by the calls' own events.

A call that the filter refuses always answers the filter's errno, and the sensor sees the answer. That is told
of the calls that the sensor follows; of others nothing is, so the class `denial` is not claimed.
"""

from __future__ import annotations

import errno
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from invigilator.ebpf.events import Abi, EventBatch, Kind, Phase, Tier
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.denials import EMITTED_MAX
from invigilator.guard.denied import ABSENT, Denial, Own
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


_NEVER_NS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True)
class _Filters:
    """A policy's. A process has one of them that started since, and before, two times since boot."""

    by_phase: Mapping[int, _Answers]
    since_ns: int = 0
    until_ns: int = _NEVER_NS

    @classmethod
    def of(cls, policy: Policy) -> Self:
        return cls({p: _answers(seccomp.build(policy, name).refusals) for p, name in _PHASES.items()})

    @property
    def distinct(self) -> set[_Answers]:
        return set(self.by_phase.values())


class RefusedCalls:
    """Tells of the sandboxes that it is told of. Stands where `Denials` does."""

    claimed = False

    def __init__(self, sensor: Sensor) -> None:
        self._sensor = sensor
        self._lock = threading.Lock()
        self._filters: dict[int, list[_Filters]] = {}
        self._codes: frozenset[int] = frozenset()

    def watch(self, slot: int, cgroups: Mapping[int, Phase], policy: Policy) -> None:
        """Tell of refusals in this sandbox from now on, and by this policy."""
        with self._lock:
            self._filters[slot] = [_Filters.of(policy)]
            self._note_codes()

    def change(self, slot: int, policy: Policy, since_ns: int, *, alone: bool) -> None:
        """Commands that start from a time since boot on have this policy's filters. A process keeps its own,
        and hands it on: `alone` says that there was none."""
        with self._lock:
            former = self._filters[slot]
            if alone:
                former = [replace(one, until_ns=min(one.until_ns, since_ns)) for one in former]
            self._filters[slot] = [*former, replace(_Filters.of(policy), since_ns=since_ns)]
            self._note_codes()

    def forget(self, slot: int) -> None:
        """Tell of this sandbox no more."""
        with self._lock:
            self._filters.pop(slot, None)
            self._note_codes()

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
                if filters := self._filters.get(slot):
                    left -= self._tell(slot, part, filters, left)

    def close(self) -> None:
        """Nothing is held."""

    def _note_codes(self) -> None:
        """Results that any refused call can have by now."""
        kept = {one for filters in self._filters.values() for each in filters for one in each.distinct}
        self._codes = frozenset().union(*(one.codes for one in kept))

    def _tell(self, slot: int, batch: EventBatch, filters: Sequence[_Filters], most: int) -> int:
        told = 0
        open_question = np.ones(len(batch), np.bool_)
        for answers, mine in _possible(batch.records, filters):
            refused = open_question & mine & _refused(batch.records, answers)
            open_question &= ~refused
            rows = batch.records[refused]
            _, first, counts = np.unique(
                rows[["pid", "start_ns", "abi", "nr"]], return_index=True, return_counts=True
            )
            for at, count in list(zip(first.tolist(), counts.tolist(), strict=True))[: most - told]:
                _denial(rows[at], count, answers).tell(self._sensor, slot)
                told += 1
        return told


def _denial(row: np.void, count: int, answers: _Answers) -> Denial:
    number = int(row["nr"])
    foreign = int(row["abi"]) != Abi.NATIVE
    name = answers.names.get(number, str(number))
    text = f"syscall number={int(row['a0'])} abi=foreign" if foreign else f"syscall {name}"
    return Denial(text.encode(), Tier.SECCOMP, int(row["result"]), int(row["pid"]), Own.of(row), count)


def _possible(
    records: npt.NDArray[np.void], filters: Sequence[_Filters]
) -> Iterator[tuple[_Answers, npt.NDArray[np.bool_]]]:
    """Each filter with the events of its phase whose process may have it, the newest first."""
    for phase in np.unique(records["phase"]).tolist():
        for one in reversed(filters):
            started = records["start_ns"]
            mine = (records["phase"] == phase) & (started >= one.since_ns) & (started < one.until_ns)
            if mine.any():
                yield one.by_phase[phase], mine


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
def _answers(refusals: tuple[seccomp.Refusal, ...]) -> _Answers:
    always, names = np.zeros(NUMBERS, np.int64), {}
    namespaces, foreign = set(), False
    for refusal in refusals:
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
