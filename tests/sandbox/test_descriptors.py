"""A process that has no more descriptors says so, and leaves nothing of what it could not finish."""

from __future__ import annotations

import contextlib
import os
import resource
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Traces

from invigilator.profiles.policy import Policy
from invigilator.sandbox.base import SandboxError, SandboxSpec
from invigilator.sandbox.process import ProcessBackend


@contextlib.contextmanager
def at_most(descriptors: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _limit_with(free: int) -> int:
    """The limit under which so many descriptors can be opened: those open lie anywhere."""
    taken = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    limit = 0
    while free:
        free -= limit not in taken
        limit += 1
    return limit


@pytest.fixture
def own(tmp_path: Path, backend: ProcessBackend) -> Iterator[ProcessBackend]:
    (tmp_path / "roots").symlink_to(backend._home / "roots")
    made = ProcessBackend(tmp_path, stock=0)
    yield made
    made.close()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _outcome(backend: ProcessBackend, descriptors: int) -> str:
    box = None
    with at_most(descriptors):
        try:
            box = backend.prepare(SandboxSpec(uuid.uuid4(), Policy(name="t")))
            box.start()
            return "made"
        except SandboxError as error:
            return str(error)
        finally:
            if box is not None:
                box.remove()


def test_a_sandbox_that_there_are_too_few_descriptors_for_is_refused_and_gone(
    own: ProcessBackend, tmp_path: Path
) -> None:
    assert _outcome(own, 4096) == "made"
    _wait_for(lambda: not Traces.of(os.getpid(), tmp_path).loops)  # layers are dropped in the background
    before, traces = _open(), Traces.of(os.getpid(), tmp_path)
    outcomes = [_outcome(own, _limit_with(free)) for free in range(30)]
    refused = [one for one in outcomes if one != "made"]
    assert outcomes[-1] == "made" and len(refused) > 5, outcomes
    for one in refused:
        assert "ulimit -n" in one or "Too many open files" in one, one
    _wait_for(lambda: (_open(), Traces.of(os.getpid(), tmp_path)) == (before, traces))
