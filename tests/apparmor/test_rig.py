"""The rig itself: what a guest is given, what comes back, and that none outlives its time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rig import boot, uml
from rig.disk import closure, disk

HANG_S = 20.0

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the guests' disk is made by root"),
    pytest.mark.skipif(bool(uml.KERNEL.missing()), reason=uml.KERNEL.missing() or "there"),
]


@pytest.fixture(scope="module")
def image() -> Path:
    return disk(boot.cache_folder())


def test_a_job_sees_the_checkout_and_its_status_and_output_come_back(image: Path, tmp_path: Path) -> None:
    job = f"cmp {boot.CHECKOUT}/pyproject.toml pyproject.toml && echo same; echo 1 >pyproject.toml; exit 7"
    before = (boot.CHECKOUT / "pyproject.toml").read_bytes()
    done = boot.run(uml.KERNEL, image, job, tmp_path, 300)
    assert (done.status, done.log) == (7, "same\n")
    assert (boot.CHECKOUT / "pyproject.toml").read_bytes() == before


def test_a_guest_that_hangs_is_ended_and_leaves_nothing(image: Path, tmp_path: Path) -> None:
    with pytest.raises(boot.RigError, match="ended before its job"):
        boot.run(uml.KERNEL, image, "sleep 1000", tmp_path, HANG_S)
    assert not _processes_of(tmp_path)


def test_what_a_package_needs_is_taken_with_it() -> None:
    found = {name for name, _ in closure(["python3"])}
    assert {"python3", "libc6"} <= found


def _processes_of(out: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(f"rig.out={out}") in words:
            found.append(process.name)
    return found
