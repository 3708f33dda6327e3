"""What tests of every kind share."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings

# The same examples in every run, so that a red run is red for what was changed. The search for new ones is
# `make test-slow`'s: what it finds becomes an `@example` beside the mended code.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.register_profile("search", max_examples=2_000, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture
def lines_run() -> Callable[[Callable[[], object]], int]:
    """How many lines of Python an action runs: a measure of work that no load of the machine changes. What
    numpy does within a line is not counted, which is the point: events are no lines."""

    def count(action: Callable[[], object]) -> int:
        lines = 0

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return step

        before = sys.gettrace()
        sys.settrace(step)
        try:
            action()
        finally:
            sys.settrace(before)
        return lines

    return count


@pytest.fixture
def open_checkout() -> None:
    """Skip where other users cannot reach this checkout's Python, so that nothing can be run as them."""
    for folder in Path(sys.prefix).parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            pytest.skip(f"other users cannot enter {folder}: clone elsewhere to run this test")
