"""Calls by name tell where the name led: through links, mounts and /proc, as the kernel itself went."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from invigilator.ebpf.events import Flag, Kind

from .conftest import Box

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


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("how", sorted(WAYS))
def test_one_by_one_every_way_is_followed_too(box: Box, tree: Path, how: str) -> None:
    told = box.run(HERE + "print(call(82, b'new', p))", tree, through(WAYS[how], tree))
    assert int(told.output) == 0
    event = told.one(Kind.RENAME)
    assert event["ino"] == (tree / "bin" / "tool").stat().st_ino
    assert (event["path2"], event["flags"] & Flag.PATH_USER) == (bytes(tree / "bin" / "tool"), 0)


def test_a_link_too_long_to_be_in_memory_leaves_what_was_said(box: Box, tree: Path) -> None:
    """Documented: a link's text of a length that a file system keeps in a block is not followed."""
    long = "../w/" * 200 + "../bin"
    (tree / "w" / "long").symlink_to(long)
    told = box.run(HERE + "print(call(87, p))", tree, "long/tool")
    assert int(told.output) == 0
    event = told.one(Kind.UNLINK)
    assert event["path"] == bytes(tree / "w" / "long" / "tool")
    assert event["flags"] & Flag.PATH_USER


def test_links_in_a_circle_end(box: Box, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    told = box.run("os.chdir(sys.argv[1]); print(call(90, b'a/x', 0o700))", tmp_path)
    assert int(told.output) == -errno.ELOOP
    assert told.one(Kind.CHMOD)["path"] == bytes(tmp_path / "a" / "x")
