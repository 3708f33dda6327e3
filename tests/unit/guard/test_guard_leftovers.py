"""Who is told of as left over: whoever stays, and nobody who was about to go."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from invigilator.ebpf.events import Phase
from invigilator.guard.leftovers import leftovers

LONG_S = 3600.0


def test_who_ends_within_the_grace_is_not_told_and_not_waited_for_longer() -> None:
    looks = iter([[os.getpid(), 1], [os.getpid()], [os.getpid()], []])
    assert leftovers(lambda: next(looks), Phase.AGENT, LONG_S) == []


def test_where_nothing_is_left_nothing_is_waited_for() -> None:
    looks = iter([[]])
    assert leftovers(lambda: next(looks), Phase.AGENT, LONG_S) == []


def test_who_stays_is_told_with_name_and_start() -> None:
    [told] = leftovers(lambda: [os.getpid()], Phase.AGENT, 0.02)
    assert (told.pid, told.phase) == (os.getpid(), Phase.AGENT)
    assert told.command.startswith(Path("/proc/self/cmdline").read_bytes()[:20])
    assert told.start_ns > 0


def test_without_grace_one_look_decides() -> None:
    looks = iter([[os.getpid()]])
    assert len(leftovers(lambda: next(looks), Phase.AGENT, 0.0)) == 1


def test_who_is_gone_between_the_look_and_the_telling_is_not_told() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert leftovers(lambda: [child.pid], Phase.AGENT, 0.0) == []
