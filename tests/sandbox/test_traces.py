"""Nothing is left behind, whoever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import Traces

from invigilator.profiles.policy import Policy
from invigilator.sandbox.base import SandboxError, SandboxSpec
from invigilator.sandbox.process import ProcessBackend

if TYPE_CHECKING:
    from conftest import MakeBox

AGENT = """
import os, sys, uuid, time
from pathlib import Path
from invigilator.profiles.policy import Policy
from invigilator.sandbox.base import SandboxSpec, Streams
from invigilator.sandbox.process import ProcessBackend
backend = ProcessBackend(Path(sys.argv[1]), stock=2)
box = backend.prepare(SandboxSpec(uuid.uuid4(), Policy(name="t"), workspace=Path(sys.argv[2])))
box.start()
null = os.open("/dev/null", os.O_RDWR)
script = "(setsid sleep 1000 &) ; sleep 1000"
command = box.execute(["bash", "-c", script], phase="agent", streams=Streams(null, null, null))
print(backend.launcher.pid, box.init_pid, command.pid, flush=True)
time.sleep(1000)
"""


def _gone(pid: int, within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def _nothing(agent: int, home: Path, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not (now := Traces.of(agent, home)).none and time.monotonic() < deadline:
        time.sleep(0.05)
    assert now.none, now


def _descendants(marker: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if marker in path.read_text() and " (zombie)" not in (path.parent / "status").read_text():
                found.append(int(path.parent.name))
    return found


@dataclass
class Agent:
    """Another agent with a running sandbox, in a process of its own."""

    process: subprocess.Popen[str]
    home: Path
    launcher: int
    init: int
    command: int

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(60)


@pytest.fixture
def agent(tmp_path: Path, workspace: Path, backend: ProcessBackend) -> Iterator[Agent]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "roots").symlink_to(backend._home / "roots")  # making a template takes long
    command = [sys.executable, "-c", AGENT, str(home), str(workspace)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    launcher, init, inside = (int(word) for word in process.stdout.readline().split())
    yield Agent(process, home, launcher, init, inside)
    process.kill()
    process.wait()
    process.stdout.close()


def test_an_agent_at_work_has_traces(agent: Agent) -> None:
    """Else the tests below would prove nothing."""
    found = Traces.of(agent.process.pid, agent.home)
    assert found.cgroups and found.loops
    deadline = time.monotonic() + 60
    while len(inside := _descendants(f"invigilator/{agent.process.pid}-")) < 3:
        assert time.monotonic() < deadline, inside
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_agents_death_takes_everything_along(agent: Agent, number: int) -> None:
    agent.end(number)
    for pid in (agent.launcher, agent.init, agent.command):
        assert _gone(pid), pid
    _nothing(agent.process.pid, agent.home)
    assert _descendants(f"invigilator/{agent.process.pid}-") == []


def test_the_zygotes_death_takes_every_sandbox_along(agent: Agent) -> None:
    os.kill(agent.launcher, signal.SIGKILL)
    assert _gone(agent.init) and _gone(agent.command)
    assert agent.process.poll() is None


def test_a_killed_zygote_is_replaced(tmp_path: Path, backend: ProcessBackend) -> None:
    (tmp_path / "roots").symlink_to(backend._home / "roots")
    mine = ProcessBackend(tmp_path, stock=1)
    try:
        before = mine.launcher.pid
        os.kill(before, signal.SIGKILL)
        assert _gone(before)
        box = mine.prepare(SandboxSpec(uuid.uuid4(), Policy(name="t")))
        try:
            box.start()
            assert box.alive and mine.launcher.pid != before
        finally:
            box.remove()
    finally:
        mine.close()


def test_what_both_left_is_swept_by_the_next_agent(agent: Agent, backend: ProcessBackend) -> None:
    os.kill(agent.launcher, signal.SIGKILL)
    agent.end(signal.SIGKILL)
    assert _gone(agent.init) and _gone(agent.command)
    assert Traces.of(agent.process.pid, agent.home).cgroups
    backend.sweep()
    _nothing(agent.process.pid, agent.home)


def test_inits_death_ends_the_commands_and_is_said(make_box: MakeBox) -> None:
    box = make_box()
    command, out, err = box.spawn("sleep", "100")
    os.kill(box.sandbox.init_pid, signal.SIGKILL)
    assert command.wait(60).signal == signal.SIGKILL
    assert not box.sandbox.alive, "said as soon as its first process has ended, though init ends last of all"
    with pytest.raises(SandboxError):
        box.run("true")
    os.close(out), os.close(err)


def test_the_pumps_death_ends_its_command_and_is_said(make_box: MakeBox) -> None:
    box = make_box()
    command, out, err = box.spawn("sleep", "100")
    stat = Path(f"/proc/{command.pid}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    with pytest.raises(SandboxError, match="killed"):
        command.wait(60)
    assert _gone(command.pid)
    os.close(out), os.close(err)


def test_removing_leaves_nothing(backend: ProcessBackend, make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    name, pid = str(box.sandbox.spec.sandbox_id), box.sandbox.init_pid
    box.sh("sleep 100 & setsid sleep 100 & echo x > /x; exit 0")
    box.sandbox.remove()
    assert not [one for one in Traces.of(os.getpid(), backend._home).cgroups if name in one]
    assert _gone(pid, 0.1)


def test_a_sandbox_that_cannot_start_leaves_nothing(
    backend: ProcessBackend, make_box: MakeBox, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    box = make_box(root=tmp_path / "root", start=False)
    name = str(box.sandbox.spec.sandbox_id)
    (tmp_path / "root").rmdir()
    with pytest.raises(SandboxError, match="cannot make the sandbox"):
        box.sandbox.start()
    box.sandbox.remove()
    assert not [one for one in Traces.of(os.getpid(), backend._home).cgroups if name in one]


def test_descriptors_do_not_leak(make_box: MakeBox) -> None:
    make_box().sandbox.remove()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        box = make_box()
        assert box.run("true").code == 0
        box.sandbox.remove()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2  # the stock of layers
