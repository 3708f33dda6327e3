"""Which failed calls a sandbox's seccomp filter refused, as the calls' own events show it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from invigilator.ebpf.events import EVENT, Abi, EventBatch, EventClass, Kind, Phase, Tier
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.refused import RefusedCalls
from invigilator.profiles import seccomp
from invigilator.profiles.policy import Policy, Syscalls

SLOT, NEWUSER, NEWNET = 3, 0x10000000, 0x40000000
BPF = {"kind": int(Kind.BPF), "nr": seccomp.number("bpf")}
UNSHARE = {"kind": int(Kind.UNSHARE), "nr": seccomp.number("unshare")}
URING = {"kind": int(Kind.IO_URING), "nr": seccomp.number("io_uring_setup")}


class FakeSensor:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def emit(self, slot: int, kind: Kind, **fields: Any) -> None:
        self.told.append({"slot": slot, "kind": kind, **fields})


def told(*rows: dict[str, Any], policy: Policy | None = None, slot: int = SLOT) -> list[dict[str, Any]]:
    """What is told of events of one process."""
    records = np.zeros(len(rows), EVENT)
    for number, row in enumerate(rows):
        kept = {"slot": SLOT, "pid": 7, "seq": number + 1, "phase": int(Phase.AGENT), **row}
        for name, value in kept.items():
            records[name][number] = value
    sensor = FakeSensor()
    calls = RefusedCalls(cast(Sensor, sensor))
    calls.watch(slot, {}, policy or Policy(name="p"))
    calls.step(EventBatch(records, [b""]))
    return sensor.told


def test_a_call_that_the_filter_always_refuses_is_a_denial_joined_to_its_event() -> None:
    (one,) = told(
        {"kind": int(Kind.OPEN), "nr": 257, "result": 3}, {**BPF, "result": -1, "step": 4, "tid": 9}
    )
    assert (one["kind"], one["text"], one["a0"], one["a1"]) == (Kind.DENIAL, b"syscall bpf", 1, 2)
    assert (one["class_"], one["tiers"]) == (int(EventClass.DENIAL), int(Tier.SECCOMP))
    assert (one["pid"], one["tid"], one["step"], one["phase"]) == (7, 9, 4, int(Phase.AGENT))


def test_equal_refusals_of_one_process_are_one_denial_that_counts() -> None:
    found = told(*[{**BPF, "result": -1}] * 5, {**BPF, "result": -1, "pid": 8})
    assert [(one["pid"], one["a0"], one["a1"]) for one in found] == [(7, 5, 1), (8, 1, 6)]


@pytest.mark.parametrize(
    "row",
    [
        {**BPF, "result": -22},
        {**BPF, "result": 3},
        {**URING, "result": -38},
        {**UNSHARE, "result": -1, "a0": NEWNET},
        {"kind": int(Kind.OPEN), "nr": 257, "result": -1},
        {"kind": int(Kind.STEP), "nr": 0xFFFF, "result": -1},
    ],
    ids=[
        "another error",
        "let",
        "io_uring is done without",
        "no user namespace",
        "the file system",
        "a fact",
    ],
)
def test_what_the_filter_did_not_refuse_is_none(row: dict[str, Any]) -> None:
    assert told(row) == []


def test_a_user_namespace_and_a_foreign_table_are_told() -> None:
    assert told({**UNSHARE, "result": -1, "a0": NEWUSER | NEWNET})[0]["text"] == b"syscall unshare"
    foreign = {"kind": int(Kind.FOREIGN_ABI), "nr": 20, "abi": int(Abi.I386), "a0": 20, "result": -38}
    assert told(foreign)[0]["text"] == b"syscall number=20 abi=foreign"


def test_the_phases_own_filter_decides_and_observe_refuses_nothing() -> None:
    row = {**BPF, "result": -1}
    lax = Policy.model_validate(
        {"name": "p", "phases": {"setup": {"syscalls": Syscalls(deny=[]).model_dump()}}}
    )
    assert told({**row, "phase": int(Phase.SETUP)}, policy=lax) == []
    assert len(told(row, policy=lax)) == 1
    assert told(row, policy=Policy(name="p", mode="observe")) == []


def test_another_sandbox_is_no_business_of_this_one() -> None:
    assert told({**BPF, "result": -1}, slot=SLOT + 1) == []


class Changed:
    """A sandbox whose policy changed at 1,000 ns since boot; `alone`: nothing ran then."""

    def __init__(self, *, alone: bool) -> None:
        self.sensor = FakeSensor()
        self.calls = RefusedCalls(cast(Sensor, self.sensor))
        self.calls.watch(SLOT, {}, DENYING_BPF)
        self.calls.change(SLOT, DENYING_ACCT, 1000, alone=alone)

    def told(self, row: dict[str, Any], start_ns: int) -> list[bytes]:
        self.sensor.told.clear()
        records = np.zeros(1, EVENT)
        own = {
            "slot": SLOT,
            "pid": 7,
            "seq": 1,
            "phase": int(Phase.AGENT),
            "result": -1,
            "start_ns": start_ns,
        }
        for name, value in {**row, **own}.items():
            records[name][0] = value
        self.calls.step(EventBatch(records, [b""]))
        return [one["text"] for one in self.sensor.told]


DENYING_BPF = Policy(name="p", syscalls=Syscalls(deny=["bpf"]))
DENYING_ACCT = Policy(name="p", syscalls=Syscalls(deny=["acct"]))
ACCT = {"kind": int(Kind.OPEN), "nr": 163}


def test_a_process_is_judged_by_the_filter_that_it_started_under() -> None:
    changed = Changed(alone=True)
    assert changed.told(BPF, 999) == [b"syscall bpf"] and changed.told(ACCT, 999) == []
    assert changed.told(BPF, 1000) == [] and changed.told(ACCT, 1000) == [b"syscall acct"]


def test_a_child_of_what_ran_before_has_the_filter_of_then() -> None:
    changed = Changed(alone=False)
    assert changed.told(BPF, 2000) == [b"syscall bpf"] and changed.told(ACCT, 2000) == [b"syscall acct"]
    assert changed.told(ACCT, 999) == []


def test_results_of_filters_that_are_gone_are_looked_for_no_more() -> None:
    calls = RefusedCalls(cast(Sensor, FakeSensor()))
    calls.watch(SLOT, {}, Policy(name="p", mode="observe"))
    assert calls._codes == frozenset()
    calls.watch(SLOT + 1, {}, DENYING_BPF)
    assert -1 in calls._codes
    calls.forget(SLOT + 1)
    assert calls._codes == frozenset()
