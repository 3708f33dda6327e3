"""Files through descriptors: each call is made, and each field of its event asserted."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from invigilator.ebpf.events import EventClass, Flag, Kind, Phase, Tier

from .conftest import Box

O_CLOEXEC = os.O_CLOEXEC


def kernel_dev(path: Path) -> int:
    """The device as the kernel numbers it, for file systems whose stat does not show another."""
    dev = path.stat().st_dev
    return os.major(dev) << 20 | os.minor(dev)


def test_openat_success_tells_object_and_caller(box: Box, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"seven!!")
    target.chmod(0o640)
    told = box.run("print(call(257, -100, os.fsencode(sys.argv[1]), os.O_RDONLY, 0))", target)
    event = told.one(Kind.OPEN, path=bytes(target))
    status = target.stat()
    assert event["result"] == int(told.output) >= 0
    assert (event["ino"], event["size"], event["mode"]) == (status.st_ino, 7, status.st_mode)
    assert event["dev"] == kernel_dev(target)
    assert event["owner"] == status.st_uid
    assert event["a0"] == os.O_RDONLY
    assert event["path2"] == bytes(target)
    assert event["nr"] == 257
    assert event["abi"] == 0
    assert event["class"] == EventClass.FILE
    assert event["tiers"] == Tier.TRACEPOINT
    assert (event["phase"], event["origin_phase"]) == (Phase.AGENT, Phase.AGENT)
    assert (event["pid"], event["tid"], event["ppid"]) == (told.pid, told.pid, os.getpid())
    assert event["uid"] == 0
    assert event["exe"] == os.fsencode(os.path.realpath("/proc/self/exe"))
    assert event["flags"] == 0
    assert 0 < event["parent_start_ns"] <= event["start_ns"] <= event["time_ns"]


def test_open_failure_keeps_errno_and_absolute_path(box: Box, tmp_path: Path) -> None:
    """C13: opens that fail are attempts with the absolute path and the errno."""
    told = box.run("os.chdir(sys.argv[1]); print(call(2, b'no/such', os.O_RDWR, 0))", tmp_path)
    event = told.one(Kind.OPEN, path2=b"no/such")
    assert event["result"] == -errno.ENOENT == int(told.output)
    assert event["path"] == bytes(tmp_path / "no" / "such")
    assert event["flags"] == Flag.PATH_USER
    assert event["nr"] == 2
    assert event["a0"] == os.O_RDWR
    assert event["ino"] == 0


def test_open_refused_keeps_eacces(box: Box, tmp_path: Path) -> None:
    """C13: EACCES, by a process that dropped its rights."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0)
    told = box.run(
        "os.setgid(65534); os.setuid(65534); print(call(2, os.fsencode(sys.argv[1]), 0, 0))", secret
    )
    event = told.of(Kind.OPEN, path2=bytes(secret))[0]
    assert event["result"] == -errno.EACCES
    assert event["path"] == bytes(secret)
    assert event["uid"] == 65534


def test_creat_flags_a_new_file(box: Box, tmp_path: Path) -> None:
    target = tmp_path / "new"
    told = box.run("print(call(85, os.fsencode(sys.argv[1]), 0o755))", target)
    event = told.one(Kind.OPEN, path=bytes(target))
    assert event["flags"] & Flag.CREATED
    assert event["flags"] & Flag.EXECUTABLE
    assert event["a0"] == os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    assert event["a1"] == 0o755
    told = box.run("print(call(85, os.fsencode(sys.argv[1]), 0o755))", target)
    assert not told.one(Kind.OPEN, path=bytes(target))["flags"] & Flag.CREATED


def test_openat2_reads_its_structure(box: Box, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    told = box.run(
        "how = struct.pack('QQQ', os.O_RDWR, 0, 0)\n"
        "print(call(437, -100, os.fsencode(sys.argv[1]), how, 24))",
        tmp_path / "f",
    )
    event = told.one(Kind.OPEN, path=bytes(tmp_path / "f"))
    assert (event["a0"], event["nr"]) == (os.O_RDWR, 437)


def test_dirfd_of_a_third_folder(box: Box, tmp_path: Path) -> None:
    """C1: chdir, then openat(dirfd of a third folder, "../x"): the absolute path; the raw argument kept."""
    for name in ("here", "third"):
        (tmp_path / name).mkdir()
    (tmp_path / "x").write_text("x")
    told = box.run(
        "os.chdir(sys.argv[1] + '/here'); d = os.open(sys.argv[1] + '/third', os.O_RDONLY)\n"
        "call(257, d, b'../x', 0, 0); call(257, d, b'../gone', 0, 0)",
        tmp_path,
    )
    assert told.one(Kind.OPEN, path2=b"../x")["path"] == bytes(tmp_path / "x")
    failed = told.one(Kind.OPEN, path2=b"../gone")
    assert failed["path"] == bytes(tmp_path / "gone")
    assert failed["result"] == -errno.ENOENT


def test_proc_self_root_and_symlinked_folder(box: Box, tmp_path: Path) -> None:
    """C2: a file reached through /proc/self/root, or a symlinked folder and "..": one canonical path."""
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    told = box.run(
        "os.open('/proc/self/root' + sys.argv[1] + '/real/file', 0)\n"
        "os.open(sys.argv[1] + '/link/../file', 0)",
        tmp_path,
    )
    events = told.of(Kind.OPEN, path=bytes(tmp_path / "real" / "file"))
    assert len(events) == 2
    assert len({(e["dev"], e["ino"], e["gen"]) for e in events}) == 1
    assert events[0]["path2"].startswith(b"/proc/self/root/")


def test_path_on_a_page_that_was_never_touched(box: Box, tmp_path: Path) -> None:
    """C8: the string lies in a file mapping that nobody has read: the event comes with its path."""
    wanted = tmp_path / "wanted"
    page = tmp_path / "page"
    page.write_bytes(bytes(wanted) + b"\0")
    told = box.run(
        "import mmap\nf = os.open(sys.argv[1], os.O_RDONLY)\n"
        "libc.mmap.restype = ctypes.c_void_p\n"
        "at = libc.mmap(None, ctypes.c_size_t(4096), 1, 2, f, ctypes.c_long(0))\n"
        "print(call(2, ctypes.c_void_p(at), 0, 0)); print(call(2, ctypes.c_void_p(8), 0, 0))",
        page,
    )
    event = told.one(Kind.OPEN, path=bytes(wanted))
    assert event["result"] == -errno.ENOENT
    fault = told.one(Kind.OPEN, result=-errno.EFAULT)
    assert fault["flags"] & Flag.PATH_FAULT
    assert fault["path"] == b""


@pytest.mark.parametrize("length", [200, 255, 1000, 4000])
def test_long_paths_are_whole(box: Box, tmp_path: Path, length: int) -> None:
    """C5: paths over 255 and near 4096 bytes, given as a whole."""
    here = bytes(tmp_path)
    made = here
    while len(made) < length:
        made += b"/" + b"n" * min(200, max(1, length - len(made) - 1))
    told = box.run(
        "p = os.fsencode(sys.argv[1])\nos.makedirs(os.path.dirname(p), exist_ok=True)\n"
        "print(call(85, p, 0o600))",
        made,
    )
    assert int(told.output) >= 0
    event = told.one(Kind.OPEN, path=made)
    assert event["path2"] == made
    assert not event["flags"] & (Flag.PATH_CUT | Flag.PATH_USER)


def test_paths_over_4096_keep_their_head_and_are_flagged(box: Box, tmp_path: Path) -> None:
    """C5: deeper than an argument can say: cut, but the head is kept, so that a prefix rule holds."""
    told = box.run(
        "os.chdir(sys.argv[1])\n"
        "for _ in range(30):\n    os.mkdir('d' * 200); os.chdir('d' * 200)\n"
        "os.close(os.open('leaf', os.O_CREAT | os.O_WRONLY))\n"
        "os.unlink('leaf')\n"
        "for _ in range(30):\n    os.chdir('..'); os.rmdir('d' * 200)",
        tmp_path,
    )
    event = told.one(Kind.OPEN, path2=b"leaf")
    assert event["flags"] & Flag.PATH_CUT
    assert len(event["path"]) == 4096
    assert event["path"].startswith(bytes(tmp_path) + b"/" + b"d" * 200)


@pytest.mark.parametrize(
    "name", [b"a b", b"[x]", b"{x}", b"@{x}", b"^", b"a,b", b"q'\"q", b"new\nline", b"\xff\xfe\x80", b'"#']
)
def test_names_of_any_bytes_are_literal(box: Box, tmp_path: Path, name: bytes) -> None:
    """C14."""
    target = bytes(tmp_path) + b"/" + name
    told = box.run("call(85, os.fsencode(sys.argv[1]), 0o600)", target)
    event = told.one(Kind.OPEN, path=target)
    assert event["path2"] == target


def test_renamed_folder_changes_remembered_paths(box: Box, tmp_path: Path) -> None:
    """The path of an object is what it is now, not what it was when last sent."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "f").write_text("x")
    told = box.run(
        "d = sys.argv[1]\nos.close(os.open(d + '/one/f', 0)); os.close(os.open(d + '/one/f', 0))\n"
        "os.rename(d + '/one', d + '/two'); os.close(os.open(d + '/two/f', 0))",
        tmp_path,
    )
    assert len(told.of(Kind.OPEN, path=bytes(tmp_path / "one" / "f"))) == 2
    assert len(told.of(Kind.OPEN, path=bytes(tmp_path / "two" / "f"))) == 1


def test_getdents_once_per_open_folder(box: Box, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    told = box.run(
        "b = ctypes.create_string_buffer(4096)\n"
        "for _ in range(2):\n"
        "    d = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)\n"
        "    call(217, d, b, 4096); os.lseek(d, 0, 0); call(217, d, b, 4096); os.close(d)",
        tmp_path,
    )
    events = told.of(Kind.GETDENTS, path=bytes(tmp_path))
    assert len(events) == 2
    assert all(stat.S_ISDIR(e["mode"]) and e["ino"] == tmp_path.stat().st_ino for e in events)


WRITES = {
    "write": "call(1, f, b'abc', 3)",
    "pwrite64": "call(18, f, b'abc', 3, 0)",
    "writev": "call(20, f, struct.pack('QQ', ctypes.addressof(b), 3), 1)",
    "pwritev": "call(296, f, struct.pack('QQ', ctypes.addressof(b), 3), 1, 0, 0)",
    "pwritev2": "call(328, f, struct.pack('QQ', ctypes.addressof(b), 3), 1, 0, 0, 0)",
}


@pytest.mark.parametrize("how", sorted(WRITES))
def test_first_write_of_an_open_file(box: Box, tmp_path: Path, how: str) -> None:
    """C15: write, writev, pwritev2, …: told once per open description, with the object."""
    target = tmp_path / "f"
    target.write_text("0123456789")
    told = box.run(
        f"b = ctypes.create_string_buffer(b'abc')\nf = os.open(sys.argv[1], os.O_WRONLY)\n"
        f"print({WRITES[how]}); {WRITES[how]}",
        target,
    )
    assert int(told.output) == 3
    event = told.one(Kind.WRITE, path=bytes(target))
    assert event["ino"] == target.stat().st_ino
    assert event["a0"] == 3
    assert event["class"] == EventClass.FILE


def test_writes_through_two_descriptions_are_two_facts(box: Box, tmp_path: Path) -> None:
    told = box.run(
        "for _ in range(3):\n"
        "    f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); os.write(f, b'x'); os.close(f)",
        tmp_path / "f",
    )
    assert len(told.of(Kind.WRITE, path=bytes(tmp_path / "f"))) == 3


MUTATIONS = {
    "ftruncate": (Kind.TRUNCATE, "call(77, f, 5)", {"a0": 5, "nr": 77}),
    "fallocate": (Kind.FALLOCATE, "call(285, f, 0, 0, 8192)", {"a0": 0, "a1": 8192, "nr": 285}),
    "fchmod": (Kind.CHMOD, "call(91, f, 0o711)", {"a0": 0o711, "nr": 91}),
    "fchown": (Kind.CHOWN, "call(93, f, 12, 34)", {"a0": 12, "a1": 34, "nr": 93}),
    "futimens": (Kind.UTIMES, "call(280, f, 0, 0, 0)", {"nr": 280}),
    "fsetxattr": (Kind.XATTR, "call(190, f, b'user.x', b'1', 1, 0)", {"nr": 190, "path2": b"user.x"}),
    "mmap": (Kind.MMAP_WRITE, "0 * call(9, 0, 4096, 3, 1, f, 0)", {"a0": 3, "a1": 4096, "nr": 9}),
}


@pytest.mark.parametrize("how", sorted(MUTATIONS))
def test_change_through_a_descriptor(box: Box, tmp_path: Path, how: str) -> None:
    """C15: mapped writes, ftruncate, fallocate and the rest name the object that they change."""
    kind, doing, fields = MUTATIONS[how]
    target = tmp_path / "f"
    target.write_bytes(b"x" * 4096)
    told = box.run(f"f = os.open(sys.argv[1], os.O_RDWR); print({doing})", target)
    event = told.one(kind, path=bytes(target))
    assert int(told.output) == 0
    assert event["ino"] == target.stat().st_ino
    assert event["dev"] == kernel_dev(target)
    assert {name: event[name] for name in fields} == fields
    assert not event["flags"] & Flag.PATH_USER


def test_change_through_a_bad_descriptor_keeps_errno(box: Box) -> None:
    told = box.run("call(77, 999, 5)")
    event = told.one(Kind.TRUNCATE)
    assert (event["result"], event["path"]) == (-errno.EBADF, b"")


def test_private_and_readonly_mappings_are_no_writes(box: Box, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"x" * 4096)
    told = box.run(
        "f = os.open(sys.argv[1], os.O_RDWR); g = os.open(sys.argv[1], os.O_RDONLY)\n"
        "call(9, 0, 4096, 3, 2, f, 0); call(9, 0, 4096, 1, 1, g, 0)",
        target,
    )
    assert not told.of(Kind.MMAP_WRITE)


COPIES = {
    "copy_file_range": "call(326, a, 0, b, 0, 4, 0)",
    "sendfile": "call(40, b, a, 0, 4)",
    "splice": "(lambda p: (call(275, a, 0, p[1], 0, 4, 0), call(275, p[0], 0, b, 0, 4, 0))[1])(os.pipe())",
}


@pytest.mark.parametrize("how", sorted(COPIES))
def test_copies_inside_the_kernel(box: Box, tmp_path: Path, how: str) -> None:
    """C15: sendfile, splice, copy_file_range into a file: destination and source named."""
    (tmp_path / "a").write_bytes(b"abcd")
    (tmp_path / "b").write_bytes(b"")
    told = box.run(
        "a = os.open(sys.argv[1] + '/a', os.O_RDONLY); b = os.open(sys.argv[1] + '/b', os.O_WRONLY)\n"
        f"print({COPIES[how]})",
        tmp_path,
    )
    assert int(told.output) == 4
    event = told.one(Kind.COPY_RANGE, path=bytes(tmp_path / "b"))
    assert event["ino"] == (tmp_path / "b").stat().st_ino
    assert event["a0"] == 4
    if how != "splice":
        assert event["path2"] == bytes(tmp_path / "a")
        assert event["ino2"] == (tmp_path / "a").stat().st_ino
        assert event["dev2"] == kernel_dev(tmp_path / "a")


IOCTLS = {
    "FICLONE": (0x40049409, "ctypes.c_long(a)", Kind.CLONE_RANGE),
    "FICLONERANGE": (0x4020940D, "struct.pack('qQQQ', a, 0, 0, 0)", Kind.CLONE_RANGE),
    "XFS_IOC_SWAPEXT": (0xC0C0586D, "struct.pack('qqq', 0, b, a) + bytes(200)", Kind.EXCHANGE_RANGE),
    "XFS_IOC_EXCHANGE_RANGE": (0x40285881, "struct.pack('iIQQQQ', a, 0, 0, 0, 0, 0)", Kind.EXCHANGE_RANGE),
    "EXT4_IOC_MOVE_EXT": (0xC028660F, "struct.pack('IIQQQQ', 0, a, 0, 0, 0, 0)", Kind.EXCHANGE_RANGE),
}


@pytest.mark.parametrize("name", sorted(IOCTLS))
def test_extent_ioctls_even_when_refused(box: Box, tmp_path: Path, name: str) -> None:
    command, argument, kind = IOCTLS[name]
    (tmp_path / "a").write_bytes(b"abcd")
    (tmp_path / "b").write_bytes(b"efgh")
    told = box.run(
        "a = os.open(sys.argv[1] + '/a', os.O_RDONLY); b = os.open(sys.argv[1] + '/b', os.O_RDWR)\n"
        f"print(call(16, b, {command}, {argument}))",
        tmp_path,
    )
    event = told.one(kind)
    assert event["result"] == int(told.output)
    assert event["a0"] == command
    assert (event["path"], event["path2"]) == (bytes(tmp_path / "b"), bytes(tmp_path / "a"))
    assert (event["ino"], event["ino2"]) == tuple((tmp_path / n).stat().st_ino for n in "ba")


def test_deleted_file_and_memfd_are_flagged(box: Box, tmp_path: Path) -> None:
    told = box.run(
        "p = sys.argv[1]\nf = os.open(p, os.O_CREAT | os.O_RDWR); os.unlink(p); os.ftruncate(f, 3)\n"
        "m = os.memfd_create('grader'); os.ftruncate(m, 3)",
        tmp_path / "gone",
    )
    gone, memory = told.of(Kind.TRUNCATE)
    assert gone["flags"] & Flag.DELETED and not gone["flags"] & Flag.MEMFD
    assert memory["flags"] & Flag.MEMFD
    made = told.one(Kind.MEMFD)
    assert made["path2"] == b"grader"
    assert made["result"] >= 0
    assert made["class"] == EventClass.PROCESS


def test_open_by_handle_names_the_object(box: Box, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    told = box.run(
        "h = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 136); m = ctypes.c_int()\n"
        "d = os.open(sys.argv[1], os.O_RDONLY)\n"
        "assert call(303, -100, os.fsencode(sys.argv[1] + '/f'), h, ctypes.byref(m), 0) == 0\n"
        "print(call(304, d, h, 0))",
        tmp_path,
    )
    event = told.one(Kind.HANDLE_OPEN)
    assert event["result"] == int(told.output) >= 0
    assert event["path"] == bytes(tmp_path / "f")
    assert event["ino"] == (tmp_path / "f").stat().st_ino
    assert event["class"] == EventClass.PRIVILEGE


def test_watched_object_tells_its_first_read(box: Box, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("the answer")
    box.sensor.watch(box.slot, kernel_dev(canary), canary.stat().st_ino)
    told = box.run("f = os.open(sys.argv[1], 0); os.read(f, 4); os.read(f, 4)", canary)
    event = told.one(Kind.READ, path=bytes(canary))
    assert event["a0"] == 4
