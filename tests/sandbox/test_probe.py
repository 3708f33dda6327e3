"""What the machine offers is found by trying."""

from __future__ import annotations

from pathlib import Path

import pytest

from invigilator.sandbox import build, probe
from invigilator.sandbox.base import UnavailableError
from invigilator.sandbox.hierarchies import Hierarchies
from invigilator.sandbox.mounts import parse
from invigilator.sandbox.process import ProcessBackend
from invigilator.sandbox.spec import Op, Specification


def test_what_works_here_is_said_with_what_it_gives(backend: ProcessBackend) -> None:
    found = {one.name: one for one in probe.examine(backend._home)}
    assert set(found) == {"launcher", "cgroups", "disk layer", "links", "sandbox"}
    assert all(one.works and one.gives and not one.fix for one in found.values()), found
    assert "seccomp, cgroup" in found["sandbox"].detail


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {one.name: one for one in probe.examine(tmp_path)}
    assert not found["launcher"].works and "apt-get install gcc" in found["launcher"].fix


def test_a_launcher_that_does_not_compile_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="does not compile"):
        build.launcher(tmp_path, compiler="false")


def test_a_compiler_that_does_not_end_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, cache = tmp_path / "compiler", tmp_path / "cache"
    compiler.write_text("#!/bin/sh\nexec sleep 600\n")
    compiler.chmod(0o700)
    monkeypatch.setattr(build, "COMPILE_TIMEOUT_S", 0.2)
    with pytest.raises(UnavailableError, match="did not compile the launcher in"):
        build.launcher(cache, compiler=str(compiler))
    assert list(cache.iterdir()) == []


def test_the_hierarchies_of_this_machine_have_all_controllers() -> None:
    assert Hierarchies.find().missing == ()


def test_a_specification_describes_its_operations() -> None:
    spec = Specification()
    spec.folder("/a b", 0o755, 7)
    spec.add(Op.PIVOT, b"\xff")
    assert spec.describe(0) == "mkdir /a b 493 7 7"
    assert spec.describe(1).startswith("pivot") and spec.describe(2) == "clone"


def test_mount_points_with_odd_bytes_are_read_back() -> None:
    line = b"36 35 98:65537 /a\\040b /mnt\\134x\\012 rw - ext3 /dev/root rw\n"
    assert [(one.dev, one.fs_root, one.mount_point) for one in parse(line)] == [
        (98 << 20 | 65537, b"/a b", b"/mnt\\x\n")
    ]
