"""Calls by name tell where the name led: through links, mounts and /proc, as the kernel itself went."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from invigilator.ebpf.events import Flag, Kind

from .conftest import PRELUDE, Box

OVERLAY = """
assert call(272, 0x20000) == 0; call(165, b'none', b'/', 0, 0x44000, 0)
os.chdir(sys.argv[1])
assert call(165, b'o', b'merged', b'overlay', 0, b'lowerdir=lower,upperdir=upper,workdir=work') == 0
os.chdir('merged')
"""


@pytest.fixture
def tree() -> Iterator[Path]:
    """`bin/tool`, a folder `deep/in`, and links that were there before anybody was watched.

    At a short path: ext4 keeps a link's text in its inode up to 59 bytes, and longer ones are not followed.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for name in ("bin", "deep/in", "w"):
            (here / name).mkdir(parents=True)
        (here / "bin" / "tool").write_text("x")
        (here / "bin" / "tool").chmod(0o755)
        (here / "w" / "new").write_text("y")
        (here / "w" / "link").symlink_to("../deep/in")
        (here / "w" / "far").symlink_to(here / "bin")
        (here / "w" / "chain").symlink_to("far")
        (here / "w" / "tool").symlink_to("chain/tool")
        yield here


WAYS = {
    "a link that came with the workspace": "far/tool",
    "a chain of links": "chain/tool",
    "the folder above where a link leads": "link/../../bin/tool",
    "dots and slashes": ".//far/./../bin//tool",
    "a link's own place in /proc": "/proc/self/cwd/far/tool",
    "the root in /proc": "/proc/self/root{}/w/far/tool",
    "a descriptor in /proc": "/proc/self/fd/{fd}/tool",
    "a descriptor in /dev": "/dev/fd/{fd}/../w/chain/tool",
}


def through(way: str, tree: Path) -> str:
    return way.replace("{fd}", "9").replace("{}", str(tree))


HERE = (
    "os.chdir(sys.argv[1] + '/w'); os.dup2(os.open('../bin', os.O_PATH), 9); p = os.fsencode(sys.argv[2])\n"
)


@pytest.mark.parametrize("how", sorted(WAYS))
def test_rename_onto_a_file_names_it_by_its_own_path(box: Box, tree: Path, how: str) -> None:
    told = box.run(HERE + "print(call(82, b'new', p))", tree, through(WAYS[how], tree))
    assert int(told.output) == 0
    event = told.one(Kind.RENAME)
    assert (event["path"], event["path2"]) == (bytes(tree / "w" / "new"), bytes(tree / "bin" / "tool"))
    assert event["ino"] == (tree / "bin" / "tool").stat().st_ino
    assert not event["flags"] & Flag.PATH_USER


@pytest.mark.parametrize("to", ["../deep", "link/..", "/proc/self/cwd/../deep"])
def test_a_rename_that_fails_tells_what_has_the_other_name(box: Box, tree: Path, to: str) -> None:
    told = box.run(HERE + "os.stat(p); print(call(82, b'new', p))", tree, to)
    assert int(told.output) in (-errno.EISDIR, -errno.EBUSY, -errno.EEXIST)
    event = told.one(Kind.RENAME)
    assert (event["path"], event["path2"]) == (bytes(tree / "w" / "new"), bytes(tree / "deep"))
    assert event["ino"] == (tree / "w" / "new").stat().st_ino
    assert event["ino2"] == (tree / "deep").stat().st_ino


@pytest.mark.parametrize("how", sorted(WAYS))
def test_unlink_names_what_is_gone_by_its_own_path(box: Box, tree: Path, how: str) -> None:
    told = box.run(HERE + "print(call(87, p))", tree, through(WAYS[how], tree))
    assert int(told.output) == 0
    event = told.one(Kind.UNLINK)
    assert event["path"] == bytes(tree / "bin" / "tool")
    assert not event["flags"] & Flag.PATH_USER


CHANGES = {
    "truncate": (Kind.TRUNCATE, "call(76, p, 0)"),
    "chmod": (Kind.CHMOD, "call(90, p, 0o700)"),
    "chown": (Kind.CHOWN, "call(92, p, 0, 0)"),
    "utimes": (Kind.UTIMES, "call(235, p, 0)"),
    "utimensat": (Kind.UTIMES, "call(280, -100, p, 0, 0)"),
    "setxattr": (Kind.XATTR, "call(188, p, b'user.a', b'1', 1, 0)"),
    "link": (Kind.LINK, "call(265, -100, p, -100, b'alias', 0x400)"),
}


@pytest.mark.parametrize("how", sorted(CHANGES))
@pytest.mark.parametrize("way", ["tool", "link/../../bin/tool", "/proc/self/fd/9/tool", "/proc/self/fd/8"])
def test_change_by_name_names_the_object(box: Box, tree: Path, how: str, way: str) -> None:
    kind, doing = CHANGES[how]
    told = box.run(HERE + f"os.dup2(os.open('../bin/tool', os.O_PATH), 8); print({doing})", tree, way)
    assert int(told.output) == 0
    event = told.one(kind)
    assert event["path"] == bytes(tree / "bin" / "tool")
    assert event["ino"] == (tree / "bin" / "tool").stat().st_ino
    assert event["flags"] == Flag.EXECUTABLE


def test_a_link_that_is_meant_itself_is_named_itself(box: Box, tree: Path) -> None:
    told = box.run(
        HERE
        + "call(94, p, 1, 1); call(82, p, b'moved'); call(268, -100, b'moved', 0o777, 0)\ncall(87, b'moved')",
        tree,
        "chain",
    )
    assert told.one(Kind.CHOWN)["path"] == bytes(tree / "w" / "chain")
    rename = told.one(Kind.RENAME)
    assert (rename["path"], rename["path2"]) == (bytes(tree / "w" / "chain"), bytes(tree / "w" / "moved"))
    assert told.one(Kind.CHMOD)["path"] == bytes(tree / "bin")
    assert told.one(Kind.UNLINK)["path"] == bytes(tree / "w" / "moved")


def test_exchange_names_both_objects(box: Box, tree: Path) -> None:
    told = box.run(HERE + "print(call(316, -100, b'new', -100, p, 2))", tree, "far/tool")
    event = told.one(Kind.RENAME)
    assert (event["result"], event["path2"]) == (0, bytes(tree / "bin" / "tool"))
    assert event["ino"] == (tree / "bin" / "tool").stat().st_ino
    assert event["ino2"] == (tree / "w" / "new").stat().st_ino


def test_what_is_made_is_the_object(box: Box, tree: Path) -> None:
    told = box.run(HERE + "call(83, b'far/folder', 0o700); call(88, b'x', b'chain/name')", tree, "-")
    made, link = told.one(Kind.MKDIR), told.one(Kind.SYMLINK)
    assert (made["path"], made["ino"]) == (bytes(tree / "bin/folder"), (tree / "bin/folder").stat().st_ino)
    assert (link["path"], link["ino"]) == (bytes(tree / "bin/name"), (tree / "bin/name").lstat().st_ino)


def test_attempts_that_are_refused_name_the_object(box: Box, tree: Path) -> None:
    """C13: where something is there, what was tried is known by its own path."""
    told = box.run(
        HERE + "os.chmod('../bin', 0o755); os.setuid(65534)\n"
        "print(call(2, p, 1, 0), call(87, p), call(76, p, 0), call(82, p, b'/tmp/none'), call(21, p, 2))",
        tree,
        "link/../../bin/tool",
    )
    assert {int(word) for word in told.output.split()} == {-errno.EACCES}
    for kind in (Kind.OPEN, Kind.UNLINK, Kind.TRUNCATE, Kind.RENAME, Kind.ACCESS):
        event = told.one(kind, result=-errno.EACCES)
        assert event["path"] == bytes(tree / "bin" / "tool"), kind
        assert event["ino"] == (tree / "bin" / "tool").stat().st_ino, kind


def test_what_is_not_there_is_named_as_far_as_it_is(box: Box, tree: Path) -> None:
    told = box.run(
        HERE + "print(call(87, p), call(87, b'far/none/deeper'), call(82, b'none', p))", tree, "far/none"
    )
    assert told.output.split() == ["-2", "-2", "-2"]
    short, deep = told.of(Kind.UNLINK)
    assert (short["path"], deep["path"]) == (bytes(tree / "bin/none"), bytes(tree / "bin/none/deeper"))
    assert short["flags"] & Flag.PATH_USER


def test_mounts_are_crossed_both_ways(box: Box, tree: Path) -> None:
    (tree / "deep" / "in" / "f").write_text("x")
    told = box.run(
        "assert call(272, 0x20000) == 0; call(165, b'none', b'/', 0, 0x44000, 0); os.chdir(sys.argv[1])\n"
        "assert call(165, b'bin', b'deep/in', b'', 4096, 0) == 0\n"
        "print(call(90, b'deep/in/tool', 0o700), call(90, b'deep/in/../../bin/tool', 0o711),\n"
        "      call(76, b'w/link/../in/tool', 1), call(87, b'deep/in/tool'))",
        tree,
    )
    assert told.output.split() == ["0"] * 4
    for kind in (Kind.CHMOD, Kind.TRUNCATE, Kind.UNLINK):
        assert {e["path"] for e in told.of(kind)} == {bytes(tree / "bin" / "tool")}


@pytest.mark.parametrize("place", ["far", "link/../../bin", "/proc/self/fd/9", "../w/chain/."])
def test_what_is_mounted_over_is_named_by_its_own_path(box: Box, tree: Path, place: str) -> None:
    """C5, and mounting as a way to replace: also where something is mounted there already."""
    told = box.run(
        "assert call(272, 0x20000) == 0; call(165, b'none', b'/', 0, 0x44000, 0)\n"
        + HERE
        + "at = os.path.realpath(p)\n"
        "print(*[call(165, b'../deep', p, b'', 4096, 0) for _ in range(2)], call(166, at, 2), call(161, at))",
        tree,
        place,
    )
    assert told.output.split() == ["0"] * 4
    assert [e["path"] for e in told.of(Kind.MOUNT)[1:]] == [bytes(tree / "bin")] * 3
    assert told.one(Kind.CHROOT)["path"] == bytes(tree / "deep")


def test_links_of_an_overlay_are_followed_in_every_layer(box: Box, tmp_path: Path) -> None:
    for folder in ("lower/bin", "lower/w", "upper", "work", "merged"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lower" / "bin" / "tool").write_text("x")
    (tmp_path / "lower" / "w" / "link").symlink_to("../bin")
    told = box.run(
        OVERLAY + "call(83, b'w/x', 0o700); call(88, b'../w', b'bin/back')\n"
        "print(call(90, b'w/link/tool', 0o700), call(90, b'bin/back/link/../bin/back/link/tool', 0o711),\n"
        "      call(87, b'w/link/tool'), call(82, b'w/x', b'w/link/tool'))\n"
        "print(os.stat('bin').st_ino)",
        tmp_path,
    )
    assert told.output.split()[:4] == ["0"] * 4
    assert {e["path"] for e in told.of(Kind.CHMOD)} == {b"/bin/tool"}
    assert told.one(Kind.UNLINK)["path"] == b"/bin/tool"
    assert told.one(Kind.RENAME)["path2"] == b"/bin/tool"


def test_inside_another_root_names_are_followed_from_there(box: Box, tree: Path) -> None:
    (tree / "w" / "abs").symlink_to("/bin")
    told = box.run(
        "assert call(161, os.fsencode(sys.argv[1])) == 0; os.chdir('/w')\n"
        "print(call(87, b'abs/../../../bin/tool'))",
        tree,
    )
    assert int(told.output) == 0
    assert told.one(Kind.UNLINK)["path"] == bytes(tree / "bin" / "tool")


@pytest.mark.parametrize("name", [bytes(range(1, 47)), bytes(range(48, 256)), b"x" * 255, b"\n", b"..."])
def test_names_of_any_bytes_are_found(box: Box, tmp_path: Path, name: bytes) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "l").symlink_to("d")
    told = box.run(
        "os.chdir(sys.argv[1]); n = os.fsencode(sys.argv[2]); os.mkdir(b'd/' + n)\n"
        "print(call(83, b'l/' + n + b'/' + n, 0o700), call(84, b'l/' + n + b'/' + n), call(84, b'l/' + n))",
        tmp_path,
        name,
    )
    assert told.output.split() == ["0"] * 3
    folder = bytes(tmp_path / "d") + b"/" + name
    assert [e["path"] for e in told.of(Kind.MKDIR)] == [folder, folder + b"/" + name]
    assert [e["path"] for e in told.of(Kind.UNLINK)] == [folder + b"/" + name, folder]
    assert all(not e["flags"] & Flag.PATH_USER for e in told.of(Kind.UNLINK) + told.of(Kind.MKDIR)[1:])


@pytest.fixture
def one_by_one(box: Box) -> Iterator[None]:
    """As on a kernel whose table of names was not found: a folder's names are searched one by one."""
    address = box.sensor._kernel.variable(".bss", "name_table", np.uint64)
    before = int(address[0])
    address[0] = 0
    yield
    address[0] = before


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


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("how", sorted(WAYS))
def test_one_by_one_every_way_is_followed_too(box: Box, tree: Path, how: str) -> None:
    told = box.run(HERE + "print(call(82, b'new', p))", tree, through(WAYS[how], tree))
    assert int(told.output) == 0
    event = told.one(Kind.RENAME)
    assert event["ino"] == (tree / "bin" / "tool").stat().st_ino
    assert (event["path2"], event["flags"] & Flag.PATH_USER) == (bytes(tree / "bin" / "tool"), 0)


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


def test_a_link_too_long_to_be_in_memory_leaves_what_was_said(box: Box, tree: Path) -> None:
    """Documented: a link's text of a length that a file system keeps in a block is not followed."""
    long = "../w/" * 200 + "../bin"
    (tree / "w" / "long").symlink_to(long)
    told = box.run(HERE + "print(call(87, p))", tree, "long/tool")
    assert int(told.output) == 0
    event = told.one(Kind.UNLINK)
    assert event["path"] == bytes(tree / "w" / "long" / "tool")
    assert event["flags"] & Flag.PATH_USER


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


def test_links_in_a_circle_end(box: Box, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    told = box.run("os.chdir(sys.argv[1]); print(call(90, b'a/x', 0o700))", tmp_path)
    assert int(told.output) == -errno.ELOOP
    assert told.one(Kind.CHMOD)["path"] == bytes(tmp_path / "a" / "x")
