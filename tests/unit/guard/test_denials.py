"""Which sandbox a refusal belongs to, which call it is joined with, and when the class is not whole."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from invigilator.ebpf.events import EVENT, EventBatch, Kind, Phase, Tier
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.denials import Denials
from invigilator.guard.settling import denial_coverage
from invigilator.profiles.policy import Policy
from invigilator.sandbox.audit import AuditReader, Refusal

SLOT, GONE = 3, (1 << 22) - 1
PROFILE = {"profile": b"invigilator-00", "operation": b"open", "denied_mask": b"r"}


class FakeSensor:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def emit(self, slot: int, kind: Kind, **fields: Any) -> None:
        self.told.append({"slot": slot, "kind": kind, **fields})

    def nudge(self) -> None:
        pass


class FakeReader:
    def __init__(self) -> None:
        self.waiting: list[Refusal] = []
        self.mark = self.set = 0
        self.missing = 0

    def read(self) -> list[Refusal]:
        found, self.waiting, self.mark = self.waiting, [], self.set
        return found

    def lost(self) -> int:
        return self.missing

    def set_mark(self, number: int) -> None:
        self.set = number


class Place:
    def __init__(self) -> None:
        self.sensor, self.reader = FakeSensor(), FakeReader()
        root = Path("/sys/fs/cgroup")
        self.denials = Denials(cast(Sensor, self.sensor), cast(AuditReader, self.reader), root)
        self.denials.watch(SLOT, {}, Policy(name="p"))

    def refuse(self, *refusals: Refusal, batch: EventBatch | None = None) -> list[dict[str, Any]]:
        """What is told of refusals; the events come with the drain after."""
        self.reader.waiting += refusals
        self.denials.step(EventBatch.empty())
        for _ in range(4):
            self.denials.step(batch or EventBatch.empty())
            batch = None
        return self.sensor.told


@pytest.fixture
def place() -> Iterator[Place]:
    yield Place()


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def events(*rows: dict[str, Any], strings: tuple[bytes, ...] = ()) -> EventBatch:
    records = np.zeros(len(rows), EVENT)
    for number, row in enumerate(rows):
        for name, value in {"slot": SLOT, "pid": GONE, "kind": int(Kind.OPEN), **row}.items():
            records[name][number] = value
    return EventBatch(records, [b"", *strings])


def refusal(at: int, name: bytes = b"/grader/a", **more: Any) -> Refusal:
    return Refusal("apparmor", False, at, GONE, {**PROFILE, "name": name}, **more)


def test_a_refusal_of_a_process_that_is_gone_is_told_of_its_sandbox_and_joined_to_its_call(
    place: Place,
) -> None:
    boot = now()
    batch = events(
        {"seq": 4, "kind": int(Kind.EXEC), "time_ns": boot - 10**6},
        {"seq": 5, "result": -13, "time_ns": boot, "path": 2, "phase": 2, "start_ns": 77, "step": 9},
        {"seq": 6, "result": -13, "time_ns": boot + 10**6, "path": 1, "phase": 2, "start_ns": 77, "step": 9},
        strings=(b"/grader/a", b"/grader/b"),
    )
    (told,) = place.refuse(refusal(boot, count=3), batch=batch)
    assert (told["slot"], told["kind"], told["path"]) == (SLOT, Kind.DENIAL, b"/grader/a")
    assert (told["a0"], told["a1"], told["a2"]) == (3, 6, 0)
    assert (told["start_ns"], told["step"], told["phase"]) == (77, 9, int(Phase.AGENT))
    assert told["tiers"] == int(Tier.APPARMOR)
    assert told["text"].startswith(b"open denied_mask=r")
    assert place.denials.whole(SLOT)


def test_a_call_at_another_time_or_of_another_process_is_not_joined(place: Place) -> None:
    boot = now()
    batch = events(
        {"seq": 5, "result": -13, "time_ns": boot - 2 * 10**9, "path": 1},
        {"seq": 6, "result": -13, "time_ns": boot, "path": 1, "pid": 5},
        strings=(b"/grader/a",),
    )
    (told,) = place.refuse(refusal(boot), batch=batch)
    assert told["a1"] == 0


def test_equal_refusals_join_the_events_of_their_calls_one_after_the_other(place: Place) -> None:
    """However near in time: a stamp is no finer than the kernel's tick."""
    boot = now()
    rows = [{"seq": seq, "result": -13, "time_ns": boot + seq, "path": 1} for seq in (11, 12, 13, 14)]
    place.refuse(refusal(boot, count=2), batch=events(*rows, strings=(b"/grader/a",)))
    told = place.refuse(refusal(boot), refusal(boot))
    assert [(one["a0"], one["a1"]) for one in told] == [(2, 11), (1, 13), (1, 14)]


def test_a_call_that_ended_before_the_record_was_written_is_another(place: Place) -> None:
    boot = now()
    rows = [{"seq": 5, "time_ns": boot - 1}, {"seq": 6, "time_ns": boot + 10**8}]
    batch = events(*[{"result": -13, "path": 1, **row} for row in rows], strings=(b"/grader/a",))
    assert place.refuse(refusal(boot), batch=batch)[0]["a1"] == 6


def test_refusals_of_one_call_by_several_operations_join_it_all(place: Place) -> None:
    boot = now()
    batch = events({"seq": 5, "result": -13, "time_ns": boot, "path": 1}, strings=(b"/grader/a",))
    other = Refusal("apparmor", False, boot, GONE, {**PROFILE, "operation": b"mknod", "name": b"/grader/a"})
    assert [one["a1"] for one in place.refuse(other, refusal(boot), batch=batch)] == [5, 5]


def test_a_refusal_is_joined_to_a_call_that_named_the_file_by_another_way(place: Place) -> None:
    """/bin leads to /usr/bin: the record has the file's own path, the event what the process said."""
    boot = now()
    rows = [{"seq": 5 + n, "result": -13, "time_ns": boot + n, "path": 1 + n} for n in range(3)]
    batch = events(*rows, strings=(b"/dev/tty", b"/bin/tac", b"/bin/taco"))
    assert place.refuse(refusal(boot, b"/usr/bin/tac"), batch=batch)[0]["a1"] == 6


@pytest.mark.parametrize(("others", "joined"), [(1, 5), (2, 0)], ids=["the only one", "one of two"])
def test_a_refusal_without_a_name_is_joined_to_what_alone_can_be_meant(
    place: Place, others: int, joined: int
) -> None:
    boot = now()
    batch = events(*[{"seq": 5 + n, "result": -1, "time_ns": boot + n} for n in range(others)])
    bare = Refusal("apparmor", False, boot, GONE, {**PROFILE, "operation": b"capable"})
    assert place.refuse(bare, batch=batch)[0]["a1"] == joined


def test_a_refusal_of_seccomp_is_joined_to_that_call_and_to_no_other(place: Place) -> None:
    boot = now()
    rows = [{"seq": 5, "nr": 257, "time_ns": boot + 1}, {"seq": 6, "nr": 321, "time_ns": boot + 2}]
    fields = {"subj": b"invigilator-00", "arch": b"c000003e", "comm": b"x"}
    calls = [Refusal("seccomp", False, boot, GONE, {**fields, "syscall": nr}) for nr in (b"321", b"250")]
    told = place.refuse(*calls, batch=events(*[{"result": -1, **row} for row in rows]))
    assert [(one["text"], one["a1"]) for one in told] == [
        (b"syscall bpf comm=x", 6),
        (b"syscall keyctl comm=x", 0),
    ]


def test_what_nobody_can_be_charged_with_makes_every_class_of_denials_incomplete(place: Place) -> None:
    boot = now()
    assert not place.refuse(refusal(boot))
    assert not place.denials.whole(SLOT)
    place.denials.watch(SLOT + 1, {}, Policy(name="later"))
    assert place.denials.whole(SLOT + 1)


def test_lost_audit_records_make_the_class_incomplete(place: Place) -> None:
    assert place.denials.whole(SLOT)
    assert denial_coverage(place.denials, SLOT, told=True) == "ok"
    place.reader.missing = 1
    assert not place.denials.whole(SLOT)
    assert denial_coverage(place.denials, SLOT, told=True) == "degraded"
    place.denials.watch(SLOT + 1, {}, Policy(name="later"))
    assert denial_coverage(place.denials, SLOT + 1, told=True) == "ok"
    assert denial_coverage(place.denials, SLOT + 1, told=False) == "degraded"
    assert denial_coverage(None, SLOT, told=True) == "disabled"


def test_what_an_observing_policy_would_have_refused_is_told_as_that_and_an_enforcing_ones_wish_is_not(
    place: Place,
) -> None:
    boot = now()
    let_through = replace(refusal(boot), allowed=True)
    batch = events(
        {"seq": 4, "time_ns": boot - 10**9, "phase": 2},
        {"seq": 5, "result": -13, "time_ns": boot, "path": 1, "phase": 2},
        strings=(b"/grader/a",),
    )
    assert not place.refuse(let_through, batch=batch)
    place.denials.watch(SLOT, {}, Policy(name="p", mode="observe"))
    (told,) = place.refuse(let_through, batch=batch)
    assert (told["kind"], told["path"], told["phase"]) == (Kind.DENIAL, b"/grader/a", int(Phase.AGENT))
    assert (told["a1"], told["a2"], told["result"]) == (0, 1, 0)


def test_others_profiles_are_no_business_of_ours(place: Place) -> None:
    boot = now()
    theirs = Refusal("apparmor", False, boot, os.getpid(), {"profile": b"docker-default", "name": b"/a"})
    assert not place.refuse(theirs)
    assert place.denials.whole(SLOT)


@pytest.mark.parametrize(
    ("number", "told"),
    [(b"321", b"syscall bpf"), (b"250", b"syscall keyctl"), (b"425", None), (b"41", None)],
    ids=["bpf", "keyctl", "io_uring_setup", "socket"],
)
def test_a_call_that_programs_do_without_is_no_denial(
    place: Place, number: bytes, told: bytes | None
) -> None:
    boot = now()
    fields = {"subj": b"invigilator-00", "syscall": number, "arch": b"c000003e", "comm": b"node"}
    batch = events({"seq": 8, "kind": int(Kind.EXEC), "time_ns": boot})
    found = place.refuse(Refusal("seccomp", False, boot, GONE, fields), batch=batch)
    assert [one["text"].partition(b" comm")[0] for one in found] == ([told] if told else [])


def test_a_call_by_another_abi_is_told(place: Place) -> None:
    boot = now()
    fields = {"subj": b"invigilator-00", "syscall": b"5", "arch": b"40000003"}
    batch = events({"seq": 8, "kind": int(Kind.EXEC), "time_ns": boot})
    (told,) = place.refuse(Refusal("seccomp", False, boot, GONE, fields), batch=batch)
    assert told["text"].startswith(b"syscall number=5 abi=foreign")


def test_who_settles_waits_until_what_came_before_is_told(place: Place) -> None:
    boot = now()
    place.reader.waiting.append(refusal(boot))
    batch = events({"seq": 8, "result": -13, "time_ns": boot, "path": 1}, strings=(b"/grader/a",))
    done: list[bool] = []
    waiter = threading.Thread(target=lambda: done.append(place.denials.settle()))
    waiter.start()
    while not place.reader.set:
        time.sleep(0.001)
    place.denials.step(EventBatch.empty())
    place.denials.step(batch)
    waiter.join(5)
    assert done == [True]
    assert place.sensor.told[0]["a1"] == 8
