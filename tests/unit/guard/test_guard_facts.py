"""What the agent tells of changed files at the end of a phase."""

from __future__ import annotations

import stat
from typing import Any, cast

import pytest

from invigilator.ebpf.events import DiffChange, Kind
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.canary import Canary
from invigilator.guard.facts import Recorder
from invigilator.profiles import library
from invigilator.sandbox.base import Change, Sandbox, SandboxError

TEST, OTHER = b"/workspace/tests/test_a.py", b"/workspace/tests/test_b.py"
FILE = 0o100644


class Files:
    """A sandbox whose comparison shows `added` files of these contents, and what else is said."""

    def __init__(self, added: dict[bytes, bytes], others: list[Change] | None = None) -> None:
        self.added = added
        self.others = others or []

    def changes(self, under: object) -> list[Change]:
        return [Change(p, "added", len(c), FILE, 7) for p, c in self.added.items()] + self.others

    def read_file(self, path: str, most: int) -> bytes:
        return self.added.get(path.encode(), b"")[:most]


class Told:
    """Takes the place of the sensor: what was emitted."""

    def __init__(self) -> None:
        self.lines: list[tuple[bytes, DiffChange]] = []

    def emit(self, slot: int, kind: Kind, **fields: Any) -> None:
        assert kind == Kind.DIFF
        self.lines.append((fields["path"], DiffChange(fields["a0"])))


def told(*phases: Files) -> list[tuple[bytes, DiffChange]]:
    """What the last of the phases' comparisons tells."""
    sensor = Told()
    recorder = Recorder(cast(Sensor, sensor), 0, library.load("swe-task"))
    for files in phases:
        sensor.lines.clear()
        recorder.differences(cast(Sandbox, files))
    return sensor.lines


def test_a_test_that_setup_brought_and_the_agent_edits_is_modified() -> None:
    before, after = Files({TEST: b"assert 0"}), Files({TEST: b"assert 1"})
    assert told(before) == [(TEST, DiffChange.ADDED)]
    assert told(before, after) == [(TEST, DiffChange.MODIFIED)]


def test_a_test_that_setup_brought_and_the_agent_removes_is_removed_once() -> None:
    before, after = Files({TEST: b"x", OTHER: b"y"}), Files({OTHER: b"y"})
    assert told(before, after) == [(TEST, DiffChange.REMOVED)]
    assert told(before, after, after) == []


def test_what_nobody_changed_since_is_not_told_again() -> None:
    files = Files({TEST: b"x"}, [Change(OTHER, "removed")])
    assert told(files, files) == []


def test_a_folder_that_setup_brought_is_not_modified_by_what_comes_into_it() -> None:
    folder, mode = TEST.rpartition(b"/")[0], stat.S_IFDIR | 0o755
    before = Files({}, [Change(folder, "added", 40, mode, 5)])
    after = Files({}, [Change(folder, "added", 60, mode, 5)])
    closed = Files({}, [Change(folder, "added", 60, mode & ~0o555, 5)])
    assert told(before, after) == []
    assert told(before, closed) == [(folder, DiffChange.METADATA)]


def test_new_files_do_not_crowd_out_a_changed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("invigilator.guard.facts.DIFFS_MAX", 2)
    flood = Files(
        {b"/workspace/tests/%d.py" % n: b"" for n in range(9)}, [Change(TEST, "modified", 3, FILE, 7)]
    )
    assert (TEST, DiffChange.MODIFIED) in told(flood)


class Submitted(Files):
    """Files of which only the beginning may be asked for."""

    def read_beginning(self, path: str, most: int) -> bytes:
        return self.added[path.encode()][:most]


def searched(files: Submitted) -> tuple[list[bytes], list[int]]:
    """Where a canary was found, and how many bytes are told not to have been searched."""
    found: list[bytes] = []
    left: list[int] = []

    class Facts:
        def emit(self, slot: int, kind: Kind, **fields: Any) -> None:
            if kind == Kind.CANARY_MATCH:
                found.append(fields["path"])
            else:
                assert (kind, fields["text"]) == (Kind.LIMIT, b"canary_search")
                left.append(fields["a0"])

    recorder = Recorder(cast(Sensor, Facts()), 0, library.load("swe-task"))
    planted = [Canary("/workspace/key.txt", b"q1: marker", (b"marker",))]
    recorder.canaries_in_submission(cast(Sandbox, files), planted)
    return found, left


def test_a_large_submitted_files_beginning_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("invigilator.guard.canary.READ_MAX_BYTES", 64)
    files = Submitted({b"/workspace/big": b"my marker" + bytes(200), b"/workspace/small": b"none"})
    assert searched(files) == ([b"/workspace/big"], [145])


def test_large_files_hide_no_small_one_and_what_is_not_searched_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("invigilator.guard.facts.SUBMISSION_MAX_BYTES", 100)
    large = {b"/workspace/%d" % n: bytes(90) for n in range(3)}
    files = Submitted(large | {b"/workspace/zz": b"a marker"})
    assert searched(files) == ([b"/workspace/zz"], [178])
    assert searched(Submitted({b"/workspace/zz": b"a marker"})) == ([b"/workspace/zz"], [])


def test_sizes_that_the_agent_makes_up_are_told_as_far_as_a_field_holds_them() -> None:
    sparse = [Change(b"/workspace/%d" % n, "added", 1 << 60, FILE, 7) for n in range(40)]
    files = Submitted({change.path: b"" for change in sparse}, sparse)
    assert searched(files) == ([], [(1 << 63) - 1])


class Imported(Files):
    """Files that may be asked for."""

    def read_beginning(self, path: str, most: int) -> bytes:
        if path.encode() not in (*self.added, OTHER, b"/workspace/tests/__init__.py"):
            raise SandboxError("no such file")
        return b"x"


@pytest.mark.parametrize(
    ("new", "hidden"),
    [
        (b"test_b/__init__.py", OTHER),
        (b"test_b/__init__.so", OTHER),
        (b"test_b.cpython-311-x86_64-linux-gnu.so", OTHER),
        (b"test_b.so", OTHER),
        (b"__init__.so", b"/workspace/tests/__init__.py"),
        (b"test_b/data.txt", b""),
        (b"test_c/__init__.py", b""),
        (b"test_b.txt", b""),
    ],
)
def test_a_new_module_that_python_imports_instead_names_what_it_hides(new: bytes, hidden: bytes) -> None:
    sensor = Hiding()
    files = Imported({b"/workspace/tests/" + new: b"x", b"/workspace/tests/test_c.py": b"new as well"})
    Recorder(cast(Sensor, sensor), 0, library.load("swe-task")).differences(cast(Sandbox, files))
    assert sensor.hidden == {b"/workspace/tests/" + new: hidden, b"/workspace/tests/test_c.py": b""}


class Hiding:
    """Takes the place of the sensor: what each new file is told to hide."""

    def __init__(self) -> None:
        self.hidden: dict[bytes, bytes] = {}

    def emit(self, slot: int, kind: Kind, **fields: Any) -> None:
        self.hidden[fields["path"]] = fields["path2"]


def test_caches_of_python_s_are_told_apart() -> None:
    folder = b"/workspace/tests/__pycache__"
    mode = stat.S_IFLNK | 0o777
    files = Files({folder + b"/a.cpython-311.pyc": b"x", TEST: b"y"}, [Change(folder, "added", 3, mode, 5)])
    recorder = Recorder(cast(Sensor, Told()), 0, library.load("swe-task"))
    assert recorder.differences(cast(Sandbox, files)) == [folder + b"/a.cpython-311.pyc", folder]
    assert recorder.differences(cast(Sandbox, files)) == []
