"""What the context knows: descent, windows, walks, and that it stays small and quick under attack."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import numpy as np
import pytest
from build import OFFSET_NS, SANDBOX, agent, counted, judge, policy
from hypothesis import given
from hypothesis import strategies as st

from invigilator import detectors
from invigilator.detectors.ancestry import MARKED_MAX, Marks
from invigilator.detectors.base import Detector
from invigilator.detectors.engine import Engine
from invigilator.detectors.windows import Rate, dense
from invigilator.ebpf.events import EVENT, EventBatch, Kind, Phase

SECOND = 1_000_000_000
LinesRun = Callable[[Callable[[], object]], int]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40),
    st.integers(1, 10),
    st.integers(1, 6),
)
def test_dense_windows_are_those_that_a_plain_loop_finds(seconds: list[int], window: int, least: int) -> None:
    times = np.array(seconds, np.uint64) * SECOND
    expected = [
        any(
            start <= t <= start + window and sum(start <= u <= start + window for u in seconds) >= least
            for start in seconds
        )
        for t in seconds
    ]
    assert dense(times, window, least).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=40), st.integers(1, 39))
def test_a_rate_does_not_depend_on_where_batches_end(steps: list[tuple[int, int]], cut: int) -> None:
    times = np.cumsum([gap for gap, _ in steps]).astype(np.uint64) * SECOND
    amounts = np.array([amount for _, amount in steps], float)
    whole = Rate(7.0).add(times, amounts)
    rate = Rate(7.0)
    parts = [rate.add(times[:cut], amounts[:cut]), rate.add(times[cut:], amounts[cut:])]
    assert np.concatenate(parts).tolist() == whole.tolist()


def _chain(length: int) -> EventBatch:
    """Each process forks the next and ends: the deepest tree there is."""
    records = np.zeros(2 * length, EVENT)
    pids = np.arange(length) % 30_000 + 2
    starts = np.arange(length) + 1
    forks, ends = records[0::2], records[1::2]
    forks["kind"], ends["kind"] = Kind.FORK, Kind.EXIT
    forks["pid"], forks["start_ns"] = pids, starts
    forks["ppid"][1:], forks["parent_start_ns"][1:] = pids[:-1], starts[:-1]
    ends["pid"][1:], ends["start_ns"][1:] = pids[:-1], starts[:-1]
    records["seq"] = np.arange(1, len(records) + 1)
    records["time_ns"] = records["seq"]
    records["phase"] = records["origin_phase"] = Phase.AGENT
    return EventBatch(records, [b""])


def test_a_mark_is_inherited_through_the_deepest_tree_and_marks_stay_few() -> None:
    marks = Marks()
    verdict = marks.observe(_chain(200_000).records, np.array([2]))
    assert verdict[2::2].all()
    assert len(marks) <= MARKED_MAX + 1


def test_descent_is_no_loop_over_generations(lines_run: LinesRun) -> None:
    def cost(generations: int) -> int:
        records = _chain(generations).records
        return lines_run(lambda: Marks().observe(records, np.array([2])))

    assert cost(200_000) < 2 * cost(50_000)


def test_a_mark_is_inherited_by_later_children_only() -> None:
    story = agent().fork(20, 10).exec("/usr/bin/dpkg", pid=10).fork(21, 10).exit(10)
    story.write("/usr/bin/new", pid=20, ppid=10).named(Kind.MKDIR, "/usr/lib/new", pid=21, ppid=10)
    batch = story.batch()
    execs = np.flatnonzero(batch.column("kind") == Kind.EXEC)
    verdict = Marks().observe(batch.records, execs)
    assert verdict.tolist() == [False, False, True, True, True, False, True]


def test_a_used_again_pid_is_another_process() -> None:
    story = (
        agent()
        .exec("/usr/bin/dpkg", pid=30)
        .exit(30)
        .write("/usr/bin/x", pid=30, start_ns=999, exe="/usr/bin/dpkg2")
    )
    story.write("/usr/bin/bash", pid=30, start_ns=999)
    assert counted(judge(story)) == {"system_binary_overwrite": {"success"}}


ATTACKS = {
    "renames of protected files out and in": (Kind.RENAME, b"/usr/bin/t%d", b"/tmp/t%d"),
    "symbolic links to protected folders": (Kind.SYMLINK, b"/tmp/l%d", b"/usr/bin"),
    "hard links of protected files": (Kind.LINK, b"/usr/bin/bash", b"/tmp/h%d"),
    "guesses at hidden names": (Kind.ACCESS, b"/platform/%d", b""),
    "writes to ever new protected names": (Kind.OPEN, b"/usr/lib/x%d", b""),
    "tests edited by the thousand": (Kind.WRITE, b"/workspace/tests/t%d", b""),
}


def _attack(name: str, n: int) -> Callable[[], object]:
    """`n` events of one attack, each over a name of its own, judged in five batches."""
    kind, path, path2 = ATTACKS[name]
    strings = [
        b"",
        *(path % i if b"%" in path else path for i in range(n)),
        *(path2 % i if b"%" in path2 else path2 for i in range(n)),
    ]
    records = np.zeros(n, EVENT)
    records["seq"] = records["time_ns"] = np.arange(1, n + 1)
    records["kind"] = kind
    records["path"] = np.arange(1, n + 1)
    records["path2"] = np.arange(n + 1, 2 * n + 1)
    records["a0"] = 0o1101
    records["ino"] = np.arange(n) + 7
    records["pid"] = records["start_ns"] = np.arange(n) % 500 + 2
    records["phase"] = records["origin_phase"] = Phase.AGENT
    engine = Engine(policy(), SANDBOX, OFFSET_NS)

    def run() -> None:
        for part in np.array_split(records, 5):
            engine.feed(EventBatch(part, strings))
        engine.finish()
        engine.incidents()

    return run


def _lower_every_bound(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """What the detectors keep is bounded far above what a test can fill: with less room, it is filled."""
    for found in pkgutil.iter_modules(detectors.__path__):
        module = importlib.import_module(f"{detectors.__name__}.{found.name}")
        for name, value in list(vars(module).items()):
            if name.endswith("_MAX") and isinstance(value, int) and value > most:
                monkeypatch.setattr(module, name, most)


@pytest.mark.parametrize("full", [False, True], ids=["with room", "full"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_events_cost_the_same_however_many_came_before(
    attack: str, full: bool, lines_run: LinesRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as many over ever new names are four times the work; what grew as n x n would be sixteen."""
    if full:
        _lower_every_bound(monkeypatch, 256)
    _attack(attack, 100)()  # what is made once is made
    assert lines_run(_attack(attack, 6_000)) < 6 * lines_run(_attack(attack, 1_500))


def test_detectors_read_no_kind_that_they_do_not_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without any of its declared kinds is not shown to a detector; it would add nothing."""
    from test_engine import any_story, as_bytes

    from invigilator.detectors.base import registry

    batch = any_story(5, 200)
    pieces = range(1, len(batch))
    gated = as_bytes(_judged(batch, pieces))
    for detector in registry().values():
        monkeypatch.setattr(detector, "reads", frozenset(Kind))
    assert as_bytes(_judged(batch, pieces)) == gated


def _judged(batch: EventBatch, cuts: range) -> list[object]:
    from build import judge_batch

    return list(judge_batch(batch, cuts=cuts))


def test_a_detector_is_found_by_its_file_alone() -> None:
    from invigilator.detectors.base import registry

    assert all(issubclass(detector, Detector) for detector in registry().values())
    assert list(registry()) == sorted(registry())
