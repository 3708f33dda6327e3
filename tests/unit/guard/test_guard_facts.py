"""What the agent tells of changed files at the end of a phase."""

from __future__ import annotations

from typing import Any, cast

import pytest

from invigilator.ebpf.events import DiffChange, Kind
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.facts import Recorder
from invigilator.profiles import library
from invigilator.sandbox.base import Change, Sandbox

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


def test_new_files_do_not_crowd_out_a_changed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("invigilator.guard.facts.DIFFS_MAX", 2)
    flood = Files(
        {b"/workspace/tests/%d.py" % n: b"" for n in range(9)}, [Change(TEST, "modified", 3, FILE, 7)]
    )
    assert (TEST, DiffChange.MODIFIED) in told(flood)
