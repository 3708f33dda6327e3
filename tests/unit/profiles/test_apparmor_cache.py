"""Compiled profiles: one compilation for all who want the same, whole or not at all."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
from pathlib import Path

import pytest
from apparmor_asked import PARSER, needs_parser

from invigilator.profiles import apparmor, library
from invigilator.profiles.apparmor import Automaton, Profile, cache
from invigilator.profiles.apparmor.abi import OLD

pytestmark = needs_parser

NEVER = "/bin/false"


@pytest.fixture
def profile() -> Profile:
    return apparmor.compile(library.load("swe-task"), "agent", abi=OLD)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real parser behind a script that notes each compilation in the file returned."""
    log = tmp_path / "compilations"
    script = tmp_path / "bin" / "apparmor_parser"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\ncase "$*" in *-S*) echo x >>{log};; esac\nexec {PARSER} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return log


def compilations(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_the_second_asks_no_parser(profile: Profile, tmp_path: Path, counted: Path) -> None:
    first = apparmor.binary(profile, tmp_path / "cache")
    assert apparmor.binary(profile, tmp_path / "cache") == first
    assert compilations(counted) == 1
    assert "r" not in Automaton(first).permissions(b"/solution/x").allowed


def _made(text_of: str, folder: str) -> bytes:
    return apparmor.binary(apparmor.compile(library.load(text_of), "agent", abi=OLD), Path(folder))


def test_processes_at_once_compile_once_and_all_have_the_same(tmp_path: Path, counted: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=context) as pool:
        asked = [pool.submit(_made, "swe-task", str(tmp_path / "cache")) for _ in range(9)]
        assert len({one.result(timeout=60) for one in asked}) == 1
    assert compilations(counted) == 1


def test_compiling_is_deterministic(profile: Profile, tmp_path: Path) -> None:
    assert apparmor.binary(profile, tmp_path / "one") == apparmor.binary(profile, tmp_path / "two")


def test_another_kernels_features_are_another_binary(profile: Profile, tmp_path: Path, counted: Path) -> None:
    whole = Path("/etc/apparmor.d/abi/3.0")
    less = tmp_path / "features"
    less.write_text(Path("/etc/apparmor.d/abi/kernel-5.4-vanilla").read_text())
    made = [apparmor.binary(profile, tmp_path / "cache", features) for features in (whole, less, whole)]
    assert compilations(counted) == 2
    assert made[0] == made[2]
    assert cache.key(profile, whole) != cache.key(profile, less)


def test_a_folder_of_features_is_read_whole(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    (folder / "file").mkdir(parents=True)
    (folder / "file" / "mask").write_text("read write\n")
    before = cache.features_digest(folder)
    (folder / "file" / "mask").write_text("read write exec\n")
    assert cache.features_digest(folder) != before
    (folder / "file" / "mask").write_text("read write\n")
    assert cache.features_digest(folder) == before


@pytest.mark.parametrize("left", [b"", b"\x04\x08\x00ver", b"garbage"])
def test_a_file_that_is_no_binary_is_made_again(
    profile: Profile, tmp_path: Path, counted: Path, left: bytes
) -> None:
    made = apparmor.binary(profile, tmp_path / "cache")
    (path,) = (tmp_path / "cache").glob("*.bin")
    path.write_bytes(left)
    assert apparmor.binary(profile, tmp_path / "cache") == made
    assert path.read_bytes() == made
    assert compilations(counted) == 2


def test_what_a_writer_left_when_it_died_is_removed(profile: Profile, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "x.1.tmp").write_bytes(b"half")
    apparmor.binary(profile, folder)
    assert not list(folder.glob("*.tmp"))
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}


def test_the_oldest_are_forgotten(profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT", 2)
    for name in library.list_names():
        apparmor.binary(apparmor.compile(library.load(name), "agent", abi=OLD), tmp_path)
    assert len(list(tmp_path.glob("*.bin"))) == 2


def test_without_a_parser_the_error_says_what_to_install(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(apparmor.ParserMissingError, match="install the package apparmor"):
        apparmor.binary(profile, tmp_path)


def test_a_parser_that_says_nothing_of_use_is_told_apart(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "apparmor_parser"
    script.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo AppArmor parser version 9.9.9;; *) exit 3;; esac\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda *_, **__: str(script))
    with pytest.raises(apparmor.CompileError, match=r"refused invigilator-[0-9a-f]{32} \(3\)"):
        apparmor.binary(profile, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.bin"))
