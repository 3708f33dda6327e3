"""One process backend for all tests of this folder, and a look at what they leave behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from invigilator.profiles.policy import Policy
from invigilator.sandbox.base import ExitStatus, SandboxSpec, Streams
from invigilator.sandbox.commands import Command
from invigilator.sandbox.process import ProcessBackend, ProcessSandbox

MIB = 1 << 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _missing()
    if reason:
        for item in items:
            if "tests/sandbox" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=reason))


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "sandboxes need root"
    if shutil.which("gcc") is None:
        return "the launcher needs gcc: apt-get install gcc libc6-dev"
    if not Path("/dev/loop-control").exists():
        return "the writable layer needs loop devices"
    return None


@pytest.fixture(scope="session")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBackend]:
    home = tmp_path_factory.mktemp("home")
    made = ProcessBackend(home)
    yield made
    made.close()
    shutil.rmtree(home)


@dataclass
class Result:
    status: ExitStatus
    out: bytes
    err: bytes

    @property
    def code(self) -> int:
        return self.status.code

    @property
    def text(self) -> str:
        return self.out.decode()


@dataclass
class Box:
    """A started sandbox, and short ways to run commands in it."""

    sandbox: ProcessSandbox
    drains: list[threading.Thread] = field(default_factory=list)

    def spawn(self, *command: str | bytes, stdin: int | None = None, **more: Any) -> tuple[Command, int, int]:
        """Start: the command, and read ends of its standard output and error."""
        out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC) if stdin is None else stdin
        try:
            streams = Streams(null, out[1], err[1])
            command_ = self.sandbox.execute(
                command, phase=more.pop("phase", "agent"), streams=streams, **more
            )
        finally:
            os.close(out[1])
            os.close(err[1])
            if stdin is None:
                os.close(null)
        assert isinstance(command_, Command)
        return command_, out[0], err[0]

    def run(self, *command: str | bytes, timeout_s: float = 60.0, **more: Any) -> Result:
        """Run to the end."""
        command_, out, err = self.spawn(*command, **more)
        texts: dict[int, bytes] = {}
        readers = [threading.Thread(target=lambda fd=fd: texts.update({fd: _all(fd)})) for fd in (out, err)]
        for reader in readers:
            reader.start()
        status = command_.wait(timeout_s)
        for reader in readers:
            reader.join(60)
        return Result(status, texts[out], texts[err])

    def sh(self, script: str | bytes, **more: Any) -> Result:
        """Run a script of bash's."""
        return self.run("bash", "-c", script, **more)


def _all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as stream:
        return stream.read()


MakeBox = Callable[..., Box]


@pytest.fixture
def make_box(backend: ProcessBackend) -> Iterator[MakeBox]:
    """Make a sandbox: keywords of `SandboxSpec`; `start=False` leaves it prepared only."""
    boxes: list[ProcessSandbox] = []

    def make(policy: Policy | None = None, *, start: bool = True, **more: Any) -> Box:
        made = backend.prepare(SandboxSpec(uuid.uuid4(), policy or Policy(name="test"), **more))
        boxes.append(made)
        if start:
            made.start()
        return Box(made)

    yield make
    for made in boxes:
        made.remove()


@pytest.fixture
def box(make_box: MakeBox) -> Box:
    return make_box()


@pytest.fixture(scope="module")
def shared_policy() -> Policy:
    """The policy of `shared_box`; a file may have its own."""
    return Policy(name="test")


@pytest.fixture(scope="module")
def shared_box(backend: ProcessBackend, shared_policy: Policy) -> Iterator[Box]:
    """One sandbox for the tests of a file that leave it as it was."""
    made = backend.prepare(SandboxSpec(uuid.uuid4(), shared_policy))
    made.start()
    yield Box(made)
    made.remove()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work space"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").write_text("two\n")
    return folder


def _cgroups_of(agent: int) -> Iterator[str]:
    """Of its sandboxes. Not by `Path.glob`, which ends with an error where others' vanish under it."""
    sandbox = re.compile(rf"/invigilator/{agent}-[^/]+/[^/]+/[^/]+")
    for folder, inner, _ in os.walk("/sys/fs/cgroup"):
        if sandbox.search(folder):
            yield folder
            inner.clear()


@dataclass(frozen=True)
class Traces:
    """What a sandbox could leave on the machine."""

    mounts: frozenset[str]
    cgroups: frozenset[str]
    loops: frozenset[str]
    links: frozenset[str]

    @classmethod
    def of(cls, agent: int, home: Path) -> Traces:
        """Those of the agent with a process id and a state folder; other agents work on this machine too."""
        cgroups = set(_cgroups_of(agent))
        backing = {}
        for path in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):  # others' devices come and go meanwhile
                backing[path] = path.read_text().strip()
        loops = {str(path) for path, file in backing.items() if file.startswith(str(home))}
        mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        ours = {one for one in mounts if one.startswith(str(home))}
        links = {path.name for path in Path("/sys/class/net").glob(f"gv{agent:x}-*")}
        return cls(frozenset(ours), frozenset(cgroups), frozenset(loops), frozenset(links))

    @property
    def none(self) -> bool:
        return not (self.mounts or self.cgroups or self.loops or self.links)
