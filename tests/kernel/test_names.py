"""Calls that name paths: both absolute, errno kept, what was said kept beside it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from invigilator.ebpf.events import EventClass, Flag, Kind

from .conftest import Box

RENAMES = {
    "rename": ("call(82, b'a', b'sub/b')", 82, 0),
    "renameat": ("call(264, -100, b'a', d, b'b')", 264, 0),
    "renameat2": ("call(316, -100, b'a', d, b'b', 1)", 316, 1),
}


@pytest.mark.parametrize("how", sorted(RENAMES))
def test_rename_has_both_paths_absolute(box: Box, tmp_path: Path, how: str) -> None:
    """C4: both paths right and different."""
    doing, number, flags = RENAMES[how]
    (tmp_path / "a").write_text("x")
    (tmp_path / "sub").mkdir()
    told = box.run(
        f"os.chdir(sys.argv[1]); d = os.open('sub', os.O_RDONLY)\nprint({doing}); {doing}", tmp_path
    )
    done, failed = told.of(Kind.RENAME)
    assert (done["path"], done["path2"]) == (bytes(tmp_path / "a"), bytes(tmp_path / "sub" / "b"))
    assert (done["result"], done["nr"], done["a0"]) == (int(told.output), number, flags)
    assert not done["flags"] & Flag.PATH_USER
    assert done["class"] == EventClass.FILE
    assert failed["result"] == -errno.ENOENT
    assert failed["path"] == done["path"]


def test_rename_exchange_says_so(box: Box, tmp_path: Path) -> None:
    """C4: RENAME_EXCHANGE: both names, and the flag that says that both live on."""
    for name in "ab":
        (tmp_path / name).write_text(name)
    told = box.run("os.chdir(sys.argv[1]); print(call(316, -100, b'a', -100, b'b', 2))", tmp_path)
    event = told.one(Kind.RENAME)
    assert (event["result"], event["a0"]) == (0, 2)
    assert (event["path"], event["path2"]) == (bytes(tmp_path / "a"), bytes(tmp_path / "b"))


LINKS = {
    "link": ("call(86, b'a', b'b')", 86),
    "linkat": ("call(265, -100, b'a', -100, b'b', 0)", 265),
    "linkat of a descriptor": ("call(265, os.open('a', 0), b'', -100, b'b', 0x1000)", 265),
}


@pytest.mark.parametrize("how", sorted(LINKS))
def test_hard_link_then_write_matches_by_inode(box: Box, tmp_path: Path, how: str) -> None:
    """C3: a hard link to a protected file, then a write to the alias: told apart from others by its inode."""
    doing, number = LINKS[how]
    (tmp_path / "a").write_text("x")
    told = box.run(
        f"os.chdir(sys.argv[1]); print({doing}); f = os.open('b', os.O_WRONLY); os.write(f, b'y')", tmp_path
    )
    link = told.one(Kind.LINK)
    assert (link["path"], link["path2"]) == (bytes(tmp_path / "a"), bytes(tmp_path / "b"))
    assert (link["result"], link["nr"]) == (0, number)
    write = told.one(Kind.WRITE)
    assert write["ino"] == (tmp_path / "a").stat().st_ino
    assert write["path"] == bytes(tmp_path / "b")


@pytest.mark.parametrize(
    "call", ["call(88, b'/target text', b'n')", "call(266, b'/target text', -100, b'n')"]
)
def test_symlink_keeps_its_target_text(box: Box, tmp_path: Path, call: str) -> None:
    told = box.run(f"os.chdir(sys.argv[1]); print({call}); {call}", tmp_path)
    made, failed = told.of(Kind.SYMLINK)
    assert (made["path"], made["path2"], made["result"]) == (bytes(tmp_path / "n"), b"/target text", 0)
    assert failed["result"] == -errno.EEXIST


ONE_NAME = {
    "unlink": (Kind.UNLINK, "call(87, b'f')", 0, {"a0": 0}),
    "unlinkat": (Kind.UNLINK, "call(263, -100, b'f', 0)", 0, {"a0": 0}),
    "rmdir": (Kind.UNLINK, "call(84, b'd')", 0, {"a0": 0x200}),
    "unlinkat a folder": (Kind.UNLINK, "call(263, -100, b'd', 0x200)", 0, {"a0": 0x200}),
    "mkdir": (Kind.MKDIR, "call(83, b'n', 0o700)", 0, {"a0": 0o700}),
    "mkdirat": (Kind.MKDIR, "call(258, -100, b'n', 0o700)", 0, {"a0": 0o700}),
    "mkdir again": (Kind.MKDIR, "call(83, b'd', 0o700)", -errno.EEXIST, {}),
    "mknod": (Kind.MKNOD, "call(133, b'n', 0o010600, 0)", 0, {"a0": 0o010600, "a1": 0}),
    "mknodat": (Kind.MKNOD, "call(259, -100, b'n', 0o020600, 0x103)", 0, {"a0": 0o020600, "a1": 0x103}),
    "truncate": (Kind.TRUNCATE, "call(76, b'f', 3)", 0, {"a0": 3}),
    "truncate of nothing": (Kind.TRUNCATE, "call(76, b'n', 3)", -errno.ENOENT, {"a0": 3}),
    "chmod": (Kind.CHMOD, "call(90, b'f', 0o755)", 0, {"a0": 0o755}),
    "fchmodat": (Kind.CHMOD, "call(268, -100, b'f', 0o755)", 0, {"a0": 0o755}),
    "chown": (Kind.CHOWN, "call(92, b'f', 1, 2)", 0, {"a0": 1, "a1": 2}),
    "lchown": (Kind.CHOWN, "call(94, b'f', 1, 2)", 0, {"a0": 1, "a1": 2}),
    "fchownat": (Kind.CHOWN, "call(260, -100, b'f', 1, 2, 0)", 0, {"a0": 1, "a1": 2}),
    "setxattr": (Kind.XATTR, "call(188, b'f', b'user.a', b'1', 1, 0)", 0, {}),
    "removexattr": (Kind.XATTR, "call(197, b'f', b'user.none')", -errno.ENODATA, {}),
    "utime": (Kind.UTIMES, "call(132, b'f', 0)", 0, {}),
    "utimensat": (Kind.UTIMES, "call(280, -100, b'f', 0, 0)", 0, {}),
    "stat of nothing": (Kind.ACCESS, "call(4, b'n', bytes(200))", -errno.ENOENT, {}),
    "access of nothing": (Kind.ACCESS, "call(21, b'n', 0)", -errno.ENOENT, {}),
    "readlink of nothing": (Kind.ACCESS, "call(89, b'n', bytes(9), 9)", -errno.ENOENT, {}),
    "newfstatat of nothing": (Kind.ACCESS, "call(262, -100, b'n', bytes(200), 0)", -errno.ENOENT, {}),
    "faccessat2 of nothing": (Kind.ACCESS, "call(439, -100, b'n', 0, 0)", -errno.ENOENT, {}),
    "statx of nothing": (Kind.ACCESS, "call(332, -100, b'n', 0, 1, bytes(300))", -errno.ENOENT, {}),
    "umount2 of no mount": (Kind.MOUNT, "call(166, b'd', 2)", -errno.EINVAL, {"a0": 2}),
    "chroot to nothing": (Kind.CHROOT, "call(161, b'n')", -errno.ENOENT, {}),
}


@pytest.mark.parametrize("how", sorted(ONE_NAME))
def test_call_that_names_one_path(box: Box, tmp_path: Path, how: str) -> None:
    kind, doing, result, fields = ONE_NAME[how]
    (tmp_path / "f").write_text("x")
    (tmp_path / "d").mkdir()
    told = box.run(f"os.chdir(sys.argv[1]); print({doing})", tmp_path)
    name = doing.split("b'")[1].split("'")[0]
    event = told.one(kind, path=os.fsencode(tmp_path / name))
    assert event["result"] == result == int(told.output)
    assert {key: event[key] for key in fields} == fields
    assert bool(event["flags"] & Flag.PATH_USER) == (result == -errno.ENOENT)
    assert event["path2"] == (
        doing.split("b'")[2].split("'")[0].encode() if kind == Kind.XATTR else name.encode()
    )
    assert event["nr"] == int(doing.split("(")[1].split(",")[0].rstrip(")"))


def test_mount_tells_target_source_and_flags(box: Box, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    told = box.run(
        "assert call(272, 0x20000) == 0; os.chdir(sys.argv[1])\n"
        "assert call(165, b'none', b'/', 0, 0x44000, 0) == 0\n"
        "print(call(165, b'a', b'b', b'', 4096, 0)); os.chdir('b'); call(2, b'none', 0, 0)",
        tmp_path,
    )
    event = told.one(Kind.MOUNT, a0=4096)
    assert (event["path"], event["path2"], event["result"]) == (bytes(tmp_path / "b"), b"a", 0)
    assert told.one(Kind.UNSHARE)["a0"] == 0x20000


def test_nested_bind_mounts_double_nothing(box: Box, tmp_path: Path) -> None:
    """C5: an object below nested bind mounts has the path of the file system it lies on, once."""
    for name in ("a/b/c", "m/n"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/b/c/f").write_text("x")
    told = box.run(
        "assert call(272, 0x20000) == 0; os.chdir(sys.argv[1]); call(165, b'none', b'/', 0, 0x44000, 0)\n"
        "assert call(165, b'a', b'm/n', b'', 4096, 0) == 0\n"
        "assert call(165, b'a/b', b'm/n/b', b'', 4096, 0) == 0\n"
        "print(os.open('m/n/b/c/f', 0)); call(2, b'm/n/b/c/none', 0, 0)",
        tmp_path,
    )
    assert told.one(Kind.OPEN, path2=b"m/n/b/c/f")["path"] == bytes(tmp_path / "a/b/c/f")


def test_mount_table_maps_objects_into_the_sandbox(box: Box, tmp_path: Path) -> None:
    """C2, C5: the canonical path is the one inside the sandbox, by the longest mount that holds it."""
    (tmp_path / "up" / "w" / "deep").mkdir(parents=True)
    (tmp_path / "up" / "w" / "deep" / "f").write_text("x")
    dev = tmp_path.stat().st_dev
    dev = os.major(dev) << 20 | os.minor(dev)
    up = bytes(tmp_path / "up")
    box.sensor.set_mounts(box.slot, [(dev, b"/", b"/"), (dev, up, b"/box"), (dev, up + b"/w", b"/workspace")])
    told = box.run(
        "os.chdir(sys.argv[1] + '/w'); os.open('deep/f', 0); call(2, b'../gone', 0, 0)\n"
        "call(2, b'deep/../gone', 0, 0); call(82, b'deep/f', b'g')",
        tmp_path / "up",
    )
    assert told.one(Kind.OPEN, path2=b"deep/f")["path"] == b"/workspace/deep/f"
    assert told.one(Kind.OPEN, path2=b"deep/../gone")["path"] == b"/workspace/gone"
    rename = told.one(Kind.RENAME)
    assert (rename["path"], rename["path2"]) == (b"/workspace/deep/f", b"/workspace/g")


def test_chroot_fools_no_path(box: Box, tmp_path: Path) -> None:
    (tmp_path / "jail" / "etc").mkdir(parents=True)
    (tmp_path / "jail" / "etc" / "f").write_text("x")
    told = box.run(
        "assert call(161, os.fsencode(sys.argv[1])) == 0; os.chdir('/')\n"
        "call(2, b'/etc/f', 0, 0); call(2, b'/etc/none', 0, 0)",
        tmp_path / "jail",
    )
    assert told.one(Kind.OPEN, path2=b"/etc/f")["path"] == bytes(tmp_path / "jail/etc/f")
    assert told.one(Kind.OPEN, path2=b"/etc/none")["path"] == bytes(tmp_path / "jail/etc/none")
    assert told.one(Kind.CHROOT)["result"] == 0
