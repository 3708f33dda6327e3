"""Names that are many, far, moved by others meanwhile, or on file systems that keep them elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from invigilator.ebpf.events import Flag, Kind

from .conftest import PRELUDE, Box

MANY = """
assert call(272, 0x20000) == 0; call(165, b'none', b'/', 0, 0x44000, 0)
assert call(165, b'none', os.fsencode(sys.argv[1]), b'tmpfs', 0, 0) == 0; os.chdir(sys.argv[1])
os.mkdir('many'); os.symlink('many', 'l'); os.mkdir('many/deep')
for n in ('deep/f', 'first'): os.mknod('many/' + n)
for n in range(9000): os.mknod(f'many/{n}')
print(os.stat('many/first').st_ino, os.stat('many/8999').st_ino, call(90, b'l/first', 0o700),
      call(90, b'l/8999', 0o700), call(87, b'l/first'), call(87, b'many/../l/deep/f'))
"""


def told_among_many(box: Box, tmp_path: Path) -> list[dict[str, Any]]:
    """What was told of two names of 9,000, of the end of one, and of the end of one below another.

    On a file system in memory, which keeps every name in the cache.
    """
    told = box.run(MANY, tmp_path)
    first, last, *results = map(int, told.output.split())
    events = told.of(Kind.CHMOD) + told.of(Kind.UNLINK)
    assert results == [0] * 4
    assert [e["path"] for e in events[:3]] == [b"/many/first", b"/many/8999", b"/many/first"]
    assert (events[0]["ino"] in (0, first), events[1]["ino"]) == (True, last)
    return events


def test_among_any_number_of_neighbours_a_name_is_found(box: Box, tmp_path: Path) -> None:
    """By its hash, as the kernel finds it: how many names a folder has, or had, is all the same."""
    events = told_among_many(box, tmp_path)
    assert events[0]["ino"] and events[3]["path"] == b"/many/deep/f"
    assert not any(e["flags"] & Flag.PATH_USER for e in events)


@pytest.mark.usefixtures("one_by_one")
def test_one_by_one_neighbours_are_looked_at_up_to_a_bound(box: Box, tmp_path: Path) -> None:
    """The folder of a name that is gone is known all the same; what is below an unknown one is as said."""
    events = told_among_many(box, tmp_path)
    assert [bool(e["flags"] & Flag.PATH_USER) for e in events] == [True, False, False, True]


@pytest.mark.parametrize("way", ["/" * 3000, "./" * 1900, "d/../" * 800, "d/" * 1], ids=len)
def test_a_way_of_any_number_of_steps_is_followed(box: Box, tmp_path: Path, way: str) -> None:
    """What the kernel followed in 4,096 bytes is followed: a long way round hides no file."""
    (tmp_path / "d" / "d").mkdir(parents=True)
    (tmp_path / "l").symlink_to("d/d")
    told = box.run(
        "os.chdir(sys.argv[1]); os.mknod('d/f'); os.mknod('f'); print(call(87, os.fsencode(sys.argv[2])))",
        tmp_path,
        "l/../../" + way.replace("/" * 3000, "." + "/" * 3000) + "f",
    )
    assert int(told.output) == 0
    gone = told.one(Kind.UNLINK)
    assert gone["path"] == bytes(tmp_path / "d" / "f" if way == "d/" else tmp_path / "f")
    assert not gone["flags"] & Flag.PATH_USER


CHURN = """
import random
r = random.Random(int(sys.argv[2])); names = [b'a', b'b', b'c', b'dd', b'..']
assert call(161, os.fsencode(sys.argv[1])) == 0; os.chdir('/')  # `..` leads no further
def some(): return b'/'.join(r.choice(names) for _ in range(r.randint(1, 5)))
ways = [(os.mkdir, 1), (os.rename, 2), (os.symlink, 2), (os.rmdir, 1), (os.unlink, 1),
        (lambda p: os.chmod(p, 0o755), 1), (lambda p, q: call(316, -100, p, -100, q, 2), 2)]
for _ in range(1500):
    way, count = r.choice(ways)
    try: way(*[some() for _ in range(count)])
    except OSError: pass
"""


def test_names_that_change_underfoot_stay_below_their_folder(box: Box, tmp_path: Path) -> None:
    """Four at once make, move, exchange and remove what the others walk through."""
    told = box.run(
        "kids = []\nfor n in range(4):\n    p = os.fork()\n    if not p: os.execv(sys.executable,"
        " [sys.executable, '-I', '-S', '-c', sys.argv[2], sys.argv[1], str(n)])\n"
        "for _ in range(4): assert os.wait()[1] == 0",
        tmp_path,
        PRELUDE + CHURN,
    )
    kinds = (Kind.MKDIR, Kind.RENAME, Kind.SYMLINK, Kind.UNLINK, Kind.CHMOD)
    events = [e for kind in kinds for e in told.of(kind)]
    assert len(events) == 6000
    followed = [e for e in events if not e["flags"] & (Flag.PATH_USER | Flag.STRING_LOST)]
    assert len(followed) > 500
    assert {e["path"] for e in followed if not e["path"].startswith(bytes(tmp_path))} == set()
    assert box.sensor.loss(box.slot).lost == 0


BESIDE = """
import random
call(272, 0x20000); call(165, b'none', b'/', 0, 0x44000, 0)
os.chdir(sys.argv[1]); r = random.Random(int(sys.argv[2])); print('begun', flush=True)
while True:
    n = b'n%s-%d' % (sys.argv[2].encode(), r.randrange(50))
    ways = [lambda: os.close(os.open(n, os.O_CREAT)), lambda: os.rename(n, b'other/' + n),
            lambda: os.rename(b'other/' + n, b'real/' + n), lambda: os.rename(b'real/' + n, n),
            lambda: os.unlink(b'real/' + n),
            lambda: (call(165, b'none', b'real', b'tmpfs', 0, 0), call(166, b'real', 2))]
    try: r.choice(ways)()
    except OSError: pass
"""


@pytest.fixture
def moved_beside(tmp_path: Path) -> Iterator[None]:
    """Two strangers who make, move, remove and cover what lies beside `l` → `real` and in it."""
    for name in ("real", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "l").symlink_to("real")
    command = [sys.executable, "-I", "-S", "-c", PRELUDE + BESIDE, str(tmp_path)]
    strangers = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE) for n in range(2)]
    try:
        for one in strangers:
            assert one.stdout and one.stdout.readline() == b"begun\n"
        yield
    finally:
        for one in strangers:
            one.kill()
            one.communicate()


@pytest.mark.usefixtures("moved_beside")
def test_what_others_move_beside_the_way_does_not_lead_astray(box: Box, tmp_path: Path) -> None:
    """Without a lock a way may be lost; then it is said so, and the path is what the process said."""
    told = box.run(
        "a, b = (os.fsencode(sys.argv[1]) + n for n in (b'/l/a', b'/l/../l/b')); os.mknod(a)\n"
        "for n in range(300): os.rename(a, b); os.rename(b, a)",
        tmp_path,
    )
    a, b = bytes(tmp_path / "real" / "a"), bytes(tmp_path / "real" / "b")
    events = told.of(Kind.RENAME)
    found = [e for e in events if not e["flags"] & Flag.PATH_USER]
    assert len(events) == 600 and found
    assert {(e["path"], e["path2"]) for e in found} <= {(a, b), (b, a)}
    assert {e["ino"] for e in found} == {(tmp_path / "real" / "a").stat().st_ino}


XFS = """
assert call(272, 0x20000) == 0; call(165, b'none', b'/', 0, 0x44000, 0)
os.chdir(sys.argv[1])
assert os.system('/usr/sbin/mkfs.xfs -q x.img && /bin/mount -o loop x.img m') == 0
os.chdir('m'); os.mkdir('bin'); os.mkdir('w')
os.symlink('../bin', 'w/short'); os.symlink('./' * 60 + '../bin', 'w/long')
for way in ('w/short/a', 'w/long/../bin/b', 'w/short/../w/long/c'):
    os.mknod('new'); os.rename('new', way); print(os.stat(way).st_ino)
"""


def test_links_of_xfs_are_followed(box: Box, tmp_path: Path) -> None:
    """It keeps their text in a place of its own."""
    if not Path("/usr/sbin/mkfs.xfs").exists():
        pytest.skip("no mkfs.xfs: apt-get install xfsprogs")
    with (tmp_path / "x.img").open("wb") as image:
        image.truncate(320 << 20)
    (tmp_path / "m").mkdir()
    told = box.run(XFS, tmp_path)
    events = told.of(Kind.RENAME)[-3:]
    assert [e["path2"] for e in events] == [b"/bin/a", b"/bin/b", b"/bin/c"]
    assert [e["ino"] for e in events] == [int(word) for word in told.output.split()]
    assert not any(e["flags"] & Flag.PATH_USER for e in events)
