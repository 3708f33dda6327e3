"""The workspace goes home while the agent changes it under the guard's hands."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Box, MakeBox

SECRET = "a file of the host's"
MINE = "written by the agent"
RACE_S = 4.0
CHANCES = 6
"""How many copies home a race gets at the least, however slow the machine is."""

RACER = f"""
import itertools, os, shutil, sys, time
outside, mine = sys.argv[1], {MINE!r}
def gone(path):
    try: os.unlink(path)
    except IsADirectoryError: shutil.rmtree(path, ignore_errors=True)
    except OSError: pass
def put(path):
    with open(path, "w") as f: f.write(mine * 2000)
def folder(path):
    os.mkdir(path); put(path + "/file"); os.mkdir(path + "/deep"); put(path + "/deep/file")
kinds = dict(
    folder=folder, file=put, fifo=os.mkfifo,
    link=lambda p: os.symlink(outside, p), link_to_file=lambda p: os.symlink(outside + "/secret", p),
    up=lambda p: os.symlink("../../../../../.." + outside, p), loop=lambda p: os.symlink(p, p),
    hard=lambda p: os.link("anchor", p),
)
put("anchor")
print("racing", flush=True)
RACE
"""
RACES = {
    "an entry is in turn a folder, a file, a pipe and a link out": """
for kind in itertools.cycle(kinds):
    try: gone("swap"); kinds[kind]("swap"); time.sleep(0.001)
    except OSError: pass
""",
    "by renames that leave no moment without it": """
for name in ("folder", "link"): kinds[name](name)
os.rename("folder", "swap")
import ctypes
libc = ctypes.CDLL(None)
while True: libc.renameat2(-100, b"swap", -100, b"link", 2)
""",
    "a folder on the way is exchanged": """
os.makedirs("a/b/c/d"); put("a/b/c/d/file"); os.mkdir("x")
os.symlink(outside, "x/b")
while True:
    try:
        os.rename("a/b", "y"); os.rename("x/b", "a/b"); os.rename("a/b", "x/b"); os.rename("y", "a/b")
        put("a/b/c/d/file")
    except OSError: pass
""",
    "renamed folders of the host's, which are gathered first": """
while True:
    for one, other in (("old", "new"), ("new", "old")):
        try:
            os.rename(one, other); os.symlink(outside, one); put(other + "/deep/file"); os.unlink(one)
        except OSError: gone("new" if os.path.islink("new") else "old")
""",
    "a file grows, shrinks, and is a link": """
while True:
    try:
        put("swap"); open("swap", "a").write("x" * 3_000_000); os.truncate("swap", 5); gone("swap")
        kinds["link_to_file"]("swap"); gone("swap")
    except OSError: gone("swap")
""",
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the host's that is nobody's business in there."""
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    (folder / "secret").write_text(SECRET)
    (folder / "file").write_text(SECRET)
    (folder / "deep" / "file").write_text(SECRET)
    return folder


@pytest.fixture
def race(make_box: MakeBox, workspace: Path, outside: Path) -> Iterator[Callable[[str], Box]]:
    """Begin a race in a sandbox over the workspace."""
    (workspace / "old" / "deep").mkdir(parents=True)
    for number in range(20):
        (workspace / "old" / f"{number}").write_text("of the host's workspace")
    (workspace / "old" / "deep" / "file").write_text("of the host's workspace")
    ends = []

    def begin(script: str) -> Box:
        box = make_box(workspace=workspace)
        command, out, err = box.spawn("python3", "-c", RACER.replace("RACE", script), str(outside))
        ends.append((command, out, err))
        assert os.read(out, 64) == b"racing\n", os.read(err, 4096)
        return box

    yield begin
    for command, out, err in ends:
        assert command.poll() is None, (command.poll(), os.read(err, 4096), "the race ended by itself")
        command.signal(9)
        command.wait(60)
        os.close(out), os.close(err)


def _kinds_of(path: Path) -> str:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return "nothing"
    return stat.filemode(mode)[0]


def _content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, no link followed."""
    found = {}
    for here, _, names in os.walk(folder):
        for name in names:
            path = Path(here, name)
            if stat.S_ISREG(path.lstat().st_mode):
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@pytest.mark.parametrize("script", RACES.values(), ids=RACES)
def test_no_race_leads_a_write_out_or_a_file_of_the_host_in(
    race: Callable[[str], Box], workspace: Path, outside: Path, script: str
) -> None:
    before, state = _content(outside), outside.stat()
    box = race(script)
    seen, copies, until = set(), 0, time.monotonic() + RACE_S
    while copies < CHANCES or time.monotonic() < until:
        box.sandbox.copy_back()
        copies += 1
        seen |= {_kinds_of(workspace / name) for name in ("swap", "a", "old", "new")}
        for path, content in _content(workspace).items():
            assert SECRET.encode() not in content, path
    assert _content(outside) == before
    assert (outside.stat().st_mtime_ns, outside.stat().st_ctime_ns) == (state.st_mtime_ns, state.st_ctime_ns)
    assert {"d", "-", "l"} & seen, seen
    assert not seen & {"p", "s", "c", "b"}, seen


def test_a_race_is_seen_in_more_than_one_state(race: Callable[[str], Box], workspace: Path) -> None:
    """Else the races above would prove nothing."""
    box = race(next(iter(RACES.values())))
    seen: set[str] = set()
    until = time.monotonic() + 30
    while len(seen & {"d", "-", "l"}) < 2 and time.monotonic() < until:
        box.sandbox.copy_back()
        seen.add(_kinds_of(workspace / "swap"))
    assert len(seen & {"d", "-", "l"}) >= 2, seen
