"""What the engine promises: one verdict however events are cut, bytes and order kept, no loop over them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
from build import OFFSET_NS, SANDBOX, Story, agent, judge, judge_batch, policy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from invigilator.detectors.engine import Engine, OrderError
from invigilator.detectors.evidence import as_evidence, original, printable
from invigilator.ebpf.events import EVENT, Actor, EventBatch, Flag, Kind, Phase
from invigilator.incidents.records import EVIDENCE_MAX
from invigilator.profiles.policy import Detectors

FEW = settings.default.max_examples // 5
"""Of examples that cost as much as a run of the engine."""
PLACES = [
    "/usr/bin/bash",
    "/usr/bin/ls",
    "/bin/ls",
    "/workspace/tests/a.py",
    "/workspace/tests",
    "/logs/verifier/r",
    "/grader/key",
    "/solution/x",
    "/platform/y",
    "/var/log/harness/l",
    "/run/harness.sock",
    "/usr/local/bin/pytest",
    "/tmp/a",
    "/tmp/b",
    "/tmp/a/ls",
    "/tmp/b/key",
    "/workspace/x",
    "/opt/canary",
    "/etc/a",
    "/srv/b",
    "/home/c",
    "/usr/lib/python3.11/site-packages/p.dist-info/METADATA",
    "/workspace/.git/objects/c0/" + "f" * 38,
]
FILE_KINDS = [
    Kind.OPEN,
    Kind.WRITE,
    Kind.RENAME,
    Kind.LINK,
    Kind.SYMLINK,
    Kind.UNLINK,
    Kind.CHMOD,
    Kind.TRUNCATE,
    Kind.GETDENTS,
    Kind.ACCESS,
    Kind.READ,
    Kind.MOUNT,
    Kind.CLONE_RANGE,
    Kind.EXCHANGE_RANGE,
    Kind.COPY_RANGE,
    Kind.EXEC,
    Kind.MKDIR,
    Kind.MMAP_WRITE,
]
OTHER_KINDS = [
    Kind.FORK,
    Kind.EXIT,
    Kind.CONNECT,
    Kind.CONNECT_RESULT,
    Kind.SEND,
    Kind.NET_DENIED,
    Kind.OUTPUT,
    Kind.BPF,
    Kind.FILE_BYTES,
    Kind.PHASE,
    Kind.STEP,
    Kind.DIFF,
    Kind.SURVIVOR,
    Kind.LIMIT,
    Kind.CANARY,
    Kind.GIT_FUTURE,
    Kind.UNSHARE,
]
EXES = ["/usr/bin/python3.11", "/usr/bin/dpkg", "/usr/bin/git", "/usr/bin/apt-get"]
TEXTS = ["git\0show\0c0" + "f" * 38, "git\0log\0--all", "c0" + "f" * 38, "output", "disk", "sensor", "step-1"]


def any_story(seed: int, length: int) -> EventBatch:
    """A random record in which everything may happen, in any order; only a process is born but once."""
    dice = random.Random(seed)
    story = Story(tick=0.01).phase("agent")
    people = list(range(10, 14))
    for _ in range(length):
        kind = dice.choice(FILE_KINDS if dice.random() < 0.7 else OTHER_KINDS)
        path = dice.choice(PLACES)
        pid, parent = dice.choice(people[-8:]), dice.choice(people[-8:])
        if kind is Kind.FORK:
            pid = people[-1] + 1
            people.append(pid)
        story.add(
            kind,
            path=path,
            path2=dice.choice(PLACES),
            text=dice.choice(TEXTS),
            exe=dice.choice(EXES),
            pid=pid,
            ppid=parent,
            ino=dice.choice([0, PLACES.index(path) + 1, 3]),
            ino2=dice.choice([0, 0, 4]),
            dev=41,
            result=dice.choice([0, 0, 0, 3, -2, -13, -26, -28, -115]),
            a0=dice.choice([0, 1, 2, 0o1101, 0o200000, 0x20000, 1 << 21]),
            a1=dice.choice([0, 1, 0o755]),
            flags=dice.choice([0, 0, int(Flag.CREATED), int(Flag.EXECUTABLE)]),
            mode=dice.choice([0o100644, 0o40755]),
            nr=dice.choice([0, 326, 40]),
            phase=dice.choice([Phase.AGENT, Phase.AGENT, Phase.VERIFY, Phase.SETUP]),
            origin_phase=dice.choice([Phase.AGENT, Phase.AGENT, Phase.AGENT, Phase.SETUP, Phase.UNKNOWN]),
            actor=dice.choice([Actor.AGENT, Actor.AGENT, Actor.AGENT, Actor.PLATFORM]),
            family=dice.choice([1, 2]),
            protocol=dice.choice([6, 17]),
            port=dice.randrange(1, 60),
            address=f"10.0.0.{dice.randrange(1, 9)}",
            step=dice.choice([0, 0, 1, 2]),
        )
    return story.batch()


def as_bytes(incidents: list[object]) -> bytes:
    return json.dumps([i.model_dump(mode="json") for i in incidents]).encode()  # type: ignore[attr-defined]


@settings(max_examples=FEW, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30), st.lists(st.integers(1, 149), max_size=12, unique=True))
def test_where_batches_end_changes_nothing(seed: int, cuts: list[int]) -> None:
    batch = any_story(seed, 149)
    whole = as_bytes(judge_batch(batch))
    assert as_bytes(judge_batch(batch, cuts=cuts)) == whole


def test_one_event_at_a_time_gives_the_same_verdict() -> None:
    for seed in range(2):
        batch = any_story(seed, 100)
        assert as_bytes(judge_batch(batch, cuts=range(1, 100))) == as_bytes(judge_batch(batch))


def test_asking_for_incidents_changes_nothing() -> None:
    batch = any_story(7, 150)
    engine = Engine(policy(), SANDBOX, OFFSET_NS)
    for start in range(0, len(batch), 10):
        engine.feed(EventBatch(batch.records[start : start + 10].copy(), batch.strings))
        engine.incidents()
    engine.finish()
    assert as_bytes(engine.incidents()) == as_bytes(judge_batch(batch))


def test_string_codes_and_arrow_round_trips_change_nothing() -> None:
    batch = any_story(11, 150)
    other = EventBatch.from_arrow(batch.to_arrow(SANDBOX.bytes))
    assert as_bytes(judge_batch(other)) == as_bytes(judge_batch(batch))


def test_events_that_come_late_are_refused() -> None:
    batch = any_story(1, 10)
    engine = Engine(policy(), SANDBOX, OFFSET_NS)
    engine.feed(batch)
    with pytest.raises(OrderError):
        engine.feed(batch)


def test_forty_files_are_one_incident_by_outcome_phase_and_step() -> None:
    story = agent().begin_step(1, "call-1")
    for n in range(40):
        story.write(f"/usr/bin/tool{n}")
    story.begin_step(2, "call-2").write("/usr/bin/bash").open("/usr/bin/bash", "w", error="ETXTBSY")
    found = judge(story)
    assert [(i.step_id, i.outcome, i.count) for i in found] == [
        ("call-1", "success", 40),
        ("call-2", "success", 1),
        ("call-2", "failed", 1),
    ]
    assert len(found[0].evidence) == EVIDENCE_MAX
    assert len({i.id for i in found}) == 3
    assert found[0].first_at < found[0].last_at


def test_an_incidents_id_is_the_same_in_every_run_and_differs_by_sandbox() -> None:
    batch = agent().write("/usr/bin/bash").batch()
    (one,), (again,) = judge_batch(batch), judge_batch(batch)
    assert one.id == again.id


def test_disabled_detectors_are_silent_and_monitor_only_ones_say_so() -> None:
    story = agent().write("/usr/bin/bash").open("/grader/key")
    rules = policy(detectors=Detectors(disabled=["system_binary_overwrite"], monitor_only=["oracle_access"]))
    assert [(i.kind, i.monitor_only) for i in judge(story, rules)] == [("oracle_access", True)]


HOSTILE = [
    b"/usr/bin/a b",
    b"/usr/bin/\"quo'te",
    b"/usr/bin/new\nline",
    b"/usr/bin/[x]{y}@{z}^,",
    b"/usr/bin/\xff\xfe",
    b"/usr/bin/back\\slash",
    b"/usr/bin/\\x41",
    "/usr/bin/bidi\u202eevil".encode(),
    b"/usr/bin/" + b"n" * 4000,
    b"/usr/bin/\x1b[31mred",
    b"/usr/bin/\xc3\xa9t\xc3\xa9",
]


@pytest.mark.parametrize("path", HOSTILE, ids=repr)
def test_hostile_names_are_judged_and_shown_without_loss(path: bytes) -> None:
    (found,) = judge(agent().write(path))
    shown = found.evidence[0]["path"]
    assert shown.isprintable()
    assert original(shown) == path
    assert found.summary.isprintable()
    assert json.loads(found.model_dump_json())["evidence"][0]["path"] == shown


@given(st.binary(max_size=60))
def test_printable_loses_no_byte(raw: bytes) -> None:
    text = printable(raw)
    assert text.isprintable()
    assert original(text) == raw


@settings(max_examples=FEW)
@given(st.binary(min_size=1, max_size=40), st.binary(max_size=40), st.sampled_from(FILE_KINDS))
def test_any_bytes_anywhere_break_nothing(path: bytes, other: bytes, kind: Kind) -> None:
    story = (
        agent()
        .named(Kind.SYMLINK, other, path)
        .named(kind, path, other)
        .named(kind, b"/usr/bin/" + path, other)
    )
    judge(story)


PLAIN = (Kind.OPEN, Kind.WRITE, Kind.READ, Kind.ACCESS, Kind.GETDENTS)
NAMING = (*PLAIN, Kind.RENAME, Kind.FORK)


def _busy(n: int, paths: int, kinds: tuple[Kind, ...]) -> EventBatch:
    """Events over many paths, by an agent that also touches what is protected, a few times."""
    dice = np.random.default_rng(1)
    strings = [
        b"",
        *(f"/workspace/d{i % 97}/f{i}".encode() for i in range(paths)),
        b"/usr/bin/bash",
        b"/grader/k",
    ]
    records = np.zeros(n, EVENT)
    records["seq"] = np.arange(1, n + 1)
    records["time_ns"] = np.arange(n) * 1000
    records["kind"] = dice.choice(kinds, n)
    records["path"], records["path2"] = dice.integers(1, paths + 1, (2, n))
    records["result"] = dice.choice([0, 3, -2], n)
    for first, kind, path in ((0, Kind.WRITE, paths + 1), (1, Kind.OPEN, paths + 2)):
        few = records[first:10_000:1000]
        few["kind"], few["path"], few["path2"] = kind, path, path
        few["a0"], few["result"], few["mode"] = (10 if kind is Kind.WRITE else 0), 3, 0o100644
    records["pid"] = records["start_ns"] = dice.integers(10, 20, n)
    records["ino"] = records["path"]
    records["phase"] = records["origin_phase"] = Phase.AGENT
    return EventBatch(records, strings)


LinesRun = Callable[[Callable[[], object]], int]


def _cost(lines_run: LinesRun, batch: EventBatch) -> int:
    found: list[str] = []
    cost = lines_run(lambda: found.extend(i.kind for i in judge_batch(batch)))
    assert {"system_binary_overwrite", "oracle_access"} <= set(found)
    return cost


def test_nothing_loops_over_events(lines_run: LinesRun) -> None:
    """Once every path and process is known, more events of them run hardly more lines of Python."""
    judge_batch(_busy(2_000, 100, PLAIN))  # what is made once is made
    assert _cost(lines_run, _busy(400_000, 1_000, PLAIN)) < 1.5 * _cost(
        lines_run, _busy(100_000, 1_000, PLAIN)
    )


@pytest.mark.parametrize("paths", [1_000, 50_000])
def test_events_that_move_names_cost_in_proportion(paths: int, lines_run: LinesRun) -> None:
    judge_batch(_busy(2_000, 100, NAMING))
    assert _cost(lines_run, _busy(80_000, paths, NAMING)) < 6 * _cost(lines_run, _busy(20_000, paths, NAMING))


def test_evidence_of_an_io_uring_submission_names_operation_and_count() -> None:
    batch = agent().add(Kind.IO_URING_OP, a0=18, a1=4).batch()
    fact = as_evidence(batch, len(batch) - 1, SANDBOX, OFFSET_NS)
    assert (fact["kind"], fact["operation"], fact["count"]) == ("io_uring_op", 18, 4)
