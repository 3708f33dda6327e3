"""Others' cgroups in a kernel that has v2 alone, laid out as each runtime and driver does it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from invigilator.sandbox import places
from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.foreign import ForeignCgroup, place_here

ID = "4f" * 32
POD = "pod6f1c2b9e_0c7b_4d0c_9f6e_0a4f6e3f7d11"
PLACES = {
    "docker, cgroupfs": places.docker_place(ID, "cgroupfs"),
    "docker, systemd": places.docker_place(ID, "systemd"),
    "docker, systemd, a slice of its own": places.docker_place(ID, "systemd", "jobs-gpu.slice"),
    "containerd": f"/default/{ID}",
    "nerdctl, systemd": f"/system.slice/nerdctl-{ID}.scope",
    "podman": f"/machine.slice/libpod-{ID}.scope/container",
    "podman, rootless": (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"
    ),
    "podman, cgroupfs": f"/libpod_parent/libpod-{ID}",
    "kubernetes, systemd": (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{POD}.slice/cri-containerd-{ID}.scope"
    ),
    "kubernetes, cgroupfs": f"/kubepods/burstable/{POD}/{ID}",
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return PLACES[request.param]


@pytest.fixture
def folder(place: str) -> Iterator[Path]:
    """The cgroup, as its runtime makes it; gone with all above it in the end."""
    root = Path("/sys/fs/cgroup")
    made = root / place.lstrip("/")
    made.mkdir(parents=True)
    yield made
    for one in (made, *made.parents):
        if one == root:
            break
        one.rmdir()


@pytest.fixture
def inhabitant(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is born outside, and moved in before its first program, as runtimes do it."""
    enter = f'echo $$ > "{folder}/cgroup.procs" && exec sleep 600'
    process = subprocess.Popen(["sh", "-c", enter])
    while Path(f"/proc/{process.pid}/cmdline").read_bytes() != b"sleep\x00600\x00":
        os.sched_yield()
    yield process
    process.kill()
    process.wait(30)


def test_its_process_tells_its_place_and_the_place_its_folder(
    place: str, folder: Path, inhabitant: subprocess.Popen[bytes]
) -> None:
    told = places.place_in(Path(f"/proc/{inhabitant.pid}/cgroup").read_text())
    assert told == place
    assert place_here(str(folder)) == place_here(place) == place
    found = ForeignCgroup(place)
    assert found.folder == folder
    assert found.identity == folder.stat().st_ino
    assert [(one.pid, one.command) for one in found.processes()] == [(inhabitant.pid, "sleep 600")]
    assert found.populated() is True
    assert found.mounts(any_root=True)
    assert found.mounts(any_root=False) == [], "its root is this machine's"


def test_its_end_is_seen(place: str, inhabitant: subprocess.Popen[bytes]) -> None:
    found = ForeignCgroup(place)
    seen: list[bool | None] = []

    def wait() -> None:
        while found.populated():
            found.wait(60.0, seen=True)
        seen.append(found.populated())

    waiter = threading.Thread(target=wait)
    waiter.start()
    inhabitant.kill()
    inhabitant.wait(30)
    waiter.join(60)
    assert seen == [False]


def test_one_that_is_not_there_yet_is_made_and_goes_where_nobody_came(place: str) -> None:
    with pytest.raises(SandboxError, match="there is no cgroup"):
        ForeignCgroup(place)
    found = ForeignCgroup(place, make=True)
    assert found.populated() is False
    found.close()
    assert not found.folder.exists()
    for above in found.folder.parents:
        if above == Path("/sys/fs/cgroup"):
            break
        above.rmdir()


def test_usual_places_may_be_watched_and_others_not() -> None:
    own = "docker, systemd, a slice of its own"
    assert {name for name, at in PLACES.items() if not places.is_allowed(at, places.USUAL)} == {own}
    assert places.is_allowed(PLACES[own], ["/jobs.slice/jobs-gpu.slice/"])
