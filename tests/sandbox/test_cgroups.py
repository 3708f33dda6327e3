"""What one agent does to cgroups never touches what another, living one has."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from invigilator.profiles import limits
from invigilator.profiles.policy import Policy
from invigilator.sandbox.base import SandboxError, SandboxSpec
from invigilator.sandbox.cgroups import Cgroups
from invigilator.sandbox.process import ProcessBackend

if TYPE_CHECKING:
    from conftest import Box

SWEEP = "from invigilator.sandbox.cgroups import Cgroups\nc = Cgroups()\nprint(c.sweep())\nc.close()"
HOLD = """
import time
from invigilator.profiles import limits
from invigilator.profiles.policy import Policy
from invigilator.sandbox.cgroups import Cgroups
cgroups = Cgroups()
print(cgroups.make("box", limits.compile(Policy(name="t"))).v2, flush=True)
time.sleep(100)
"""


def swept_by_another(*prefix: str) -> None:
    """Another agent sweeps, by a command line that may put it into namespaces of its own."""
    command = [*prefix, sys.executable, "-c", SWEEP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


NAMESPACES = [
    (),
    ("unshare", "--pid", "--fork", "--mount-proc"),
    ("unshare", "--time", "--boottime", "9999", "-f"),
]


@pytest.mark.parametrize("prefix", NAMESPACES, ids=["here", "pid-namespace", "time-namespace"])
def test_a_sweep_leaves_a_living_agents_cgroups(box: Box, prefix: Sequence[str]) -> None:
    command, out, err = box.spawn("sleep", "100")
    swept_by_another(*prefix)
    assert command.poll() is None
    assert box.sh("echo still here").out == b"still here\n"
    command.signal(9)
    assert command.wait(60).signal == 9
    os.close(out), os.close(err)


def test_another_home_opened_swept_and_closed_leaves_them(
    box: Box, backend: ProcessBackend, tmp_path: Path
) -> None:
    (tmp_path / "roots").symlink_to(backend._home / "roots")
    other = ProcessBackend(tmp_path, stock=0)
    try:
        second = other.prepare(SandboxSpec(uuid.uuid4(), Policy(name="t")))
        second.start()
        other.sweep()
        second.remove()
    finally:
        other.close()
    assert backend.parent_cgroup().is_dir() and not other.parent_cgroup().exists()
    assert box.sh("echo still here").out == b"still here\n"


@pytest.fixture
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another agent in a pid namespace of its own, whose process id means nothing here; its cgroup."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", HOLD]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_sweep_takes_what_a_dead_agent_of_another_namespace_left(
    holder: tuple[subprocess.Popen[str], Path], backend: ProcessBackend
) -> None:
    process, folder = holder
    backend.sweep()
    assert folder.is_dir(), "its agent lives"
    process.kill()
    process.wait()
    deadline = 200
    while folder.exists() and (deadline := deadline - 1):
        backend.sweep()
    assert not folder.exists()


def test_removed_cgroups_are_told_of_and_hide_no_process() -> None:
    cgroups = Cgroups()
    made = cgroups.make("box", limits.compile(Policy(name="t")))
    made.remove()
    with pytest.raises(SandboxError, match="cannot be read"):
        made.processes("agent")
    cgroups.close()
    with pytest.raises(SandboxError, match="removed"):
        cgroups.make("other", limits.compile(Policy(name="t")))
