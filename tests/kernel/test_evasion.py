"""Ways round a watcher, tried for real: what is seen of each. What is not is written in docs/sensor.md."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from invigilator.ebpf.events import Flag, Kind

from .conftest import Box

PROTECTED = "f = sys.argv[1]; b = os.fsencode(f)\n"


@pytest.fixture
def protected(tmp_path: Path) -> Path:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "protected").write_bytes(b"x" * 4096)
    return tmp_path / "d" / "protected"


WRITES = {
    "a read-only descriptor opened anew": "g = os.open(f, 0); h = os.open(f'/proc/self/fd/{g}', os.O_WRONLY)",
    "an O_PATH descriptor opened anew": "g = os.open(f, os.O_PATH); os.open(f'/dev/fd/{g}', os.O_RDWR)",
    "another process's root": "os.open(f'/proc/{os.getppid()}/root{f}', os.O_WRONLY)",
    "the thread's own root": "os.open(f'/proc/thread-self/root{f}', os.O_WRONLY)",
    "creat": "call(85, b, 0o600)",
    "openat2 below a folder": (
        "d = os.open(os.path.dirname(f), os.O_PATH)\n"
        "call(437, d, b'protected', struct.pack('QQQ', 1, 0, 8), 24)"
    ),
    "a detached copy of the mount": (
        "t = call(428, -100, os.path.dirname(b), 1 | 0x80000); assert t >= 0, t\n"
        "os.open('protected', os.O_WRONLY, dir_fd=t)"
    ),
}


@pytest.mark.parametrize("how", sorted(WRITES))
def test_opening_for_writing_names_the_object(box: Box, protected: Path, how: str) -> None:
    told = box.run(PROTECTED + WRITES[how], protected)
    writing = [e for e in told.of(Kind.OPEN) if e["a0"] & 3 and e["result"] >= 0]
    assert [(e["path"], e["ino"]) for e in writing] == [(bytes(protected), protected.stat().st_ino)]


def test_a_folder_mounted_elsewhere_in_a_namespace_of_ones_own(box: Box, protected: Path) -> None:
    """move_mount of a clone: the target is told, and the file behind it is still itself."""
    (protected.parent.parent / "m").mkdir()
    told = box.run(
        PROTECTED + "assert call(272, 0x20000) == 0; call(165, b'none', b'/', 0, 0x44000, 0)\n"
        "os.chdir(os.path.dirname(f) + '/..'); t = call(428, -100, b'd', 1)\n"
        "assert call(429, t, b'', -100, b'm', 4) == 0; open('m/protected', 'r+').write('y')",
        protected,
    )
    assert told.one(Kind.WRITE)["path"] == bytes(protected)
    mounts = told.of(Kind.MOUNT)
    assert mounts[-1]["path"] == bytes(protected.parent.parent / "m")


def test_mounts_that_hang_nowhere_are_told(box: Box, protected: Path) -> None:
    told = box.run(
        PROTECTED + "d = os.path.dirname(b); t = call(428, -100, d, 1); print(call(430, b'tmpfs', 0))\n"
        "call(428, -100, d, 0); os.setresuid(65534, 65534, 65534); print(call(430, b'tmpfs', 0))",
        protected,
    )
    made, refused = map(int, told.output.split())
    clone, first, second = told.of(Kind.MOUNT)
    assert (clone["path"], clone["path2"], clone["a0"]) == (b"", bytes(protected.parent), 1)
    assert (first["path2"], first["result"], second["result"]) == (b"tmpfs", made, refused)
    assert refused == -errno.EPERM


def test_a_descriptor_passed_over_a_socket_is_still_the_object(box: Box, protected: Path) -> None:
    told = box.run(
        PROTECTED + "a, b = socket.socketpair()\nif not os.fork():\n"
        "    m, fds, *_ = socket.recv_fds(b, 1, 1); os.write(fds[0], b'z'); os._exit(0)\n"
        "socket.send_fds(a, [b'.'], [os.open(f, os.O_WRONLY)]); os.wait()",
        protected,
    )
    write = told.one(Kind.WRITE)
    assert (write["path"], write["pid"] != told.pid) == (bytes(protected), True)


def test_a_descriptor_handed_to_somebody_outside_shows_at_its_opening(box: Box, protected: Path) -> None:
    """What an unwatched process does with it is nobody's event; that it was opened for writing is."""
    name = str(protected.parent / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        told = box.run(
            PROTECTED + "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[2])\n"
            "socket.send_fds(s, [b'.'], [os.open(f, os.O_WRONLY)])",
            protected,
            name,
        )
        peer, _ = listening.accept()
        with peer:
            _, fds, *_ = socket.recv_fds(peer, 1, 1)
            os.write(fds[0], b"z")
            os.close(fds[0])
    assert told.one(Kind.OPEN, path=bytes(protected))["a0"] & 3 == os.O_WRONLY
    assert told.one(Kind.CONNECT)["path"] == os.fsencode(name)
    assert not box.events().match("path", lambda p: p == bytes(protected)).any()


INTO = {
    "vmsplice and splice": (
        "r, w = os.pipe(); t = ctypes.create_string_buffer(b'evil')\n"
        "assert call(278, w, struct.pack('QQ', ctypes.addressof(t), 4), 1, 0) == 4\n"
        "assert call(275, r, 0, o, 0, 4, 0) == 4"
    ),
    "sendfile": "assert call(40, o, os.open('/etc/hostname', 0), 0, 1) == 1",
    "pwritev2": (
        "t = ctypes.create_string_buffer(b'x')\n"
        "assert call(328, o, struct.pack('QQ', ctypes.addressof(t), 1), 1, 0, 0, 0) == 1"
    ),
    "an old-style write at an offset": "assert os.pwrite(o, b'x', 100) == 1",
}


@pytest.mark.parametrize("how", sorted(INTO))
def test_bytes_that_come_by_another_way_are_told(box: Box, protected: Path, how: str) -> None:
    told = box.run(PROTECTED + "o = os.open(f, os.O_WRONLY)\n" + INTO[how], protected)
    seen = told.of(Kind.COPY_RANGE) + told.of(Kind.WRITE)
    assert bytes(protected) in {e["path"] for e in seen}


def test_a_mapping_made_writable_later_was_told_when_it_was_made(box: Box, protected: Path) -> None:
    told = box.run(
        PROTECTED + "o = os.open(f, os.O_RDWR); p = call(9, 0, 4096, 1, 1, o, 0); os.close(o)\n"
        "assert call(10, p, 4096, 3) == 0; ctypes.memset(p, 65, 10)",
        protected,
    )
    assert told.one(Kind.MMAP_WRITE)["path"] == bytes(protected)
    assert protected.read_bytes()[:10] == b"A" * 10


def test_memory_advice_to_another_process_changes_no_file(box: Box, protected: Path) -> None:
    """process_madvise takes hints only: neither an event nor a change."""
    before = protected.read_bytes()
    box.run(
        PROTECTED + "p = call(434, os.getpid(), 0); call(440, p, struct.pack('QQ', 0, 0), 1, 4, 0)", protected
    )
    assert protected.read_bytes() == before


def test_a_handle_is_told_with_what_it_opened(box: Box, protected: Path) -> None:
    told = box.run(
        PROTECTED + "h = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 136); m = ctypes.c_int()\n"
        "assert call(303, -100, b, h, ctypes.byref(m), 0) == 0\n"
        "o = call(304, os.open('/', 0), h, 1); assert o >= 0, o; os.write(o, b'x')",
        protected,
    )
    assert told.one(Kind.HANDLE_OPEN)["path"] == bytes(protected)
    assert told.one(Kind.WRITE)["path"] == bytes(protected)


EXECS = {
    "fexecve of a deleted file": "o = os.open(c, 0); os.unlink(c); os.execve(o, ['t'], {})",
    "execveat with an empty path": "o = os.open(c, os.O_PATH); call(322, o, b'', a, 0, 0x1000)",
    "a memfd": "o = os.memfd_create('t'); os.write(o, open(c, 'rb').read()); os.execve(o, ['t'], {})",
    "a hard link": "os.link(c, c + '2'); os.execv(c + '2', ['t'])",
}


@pytest.mark.parametrize("how", sorted(EXECS))
def test_the_executable_is_the_object_that_ran(box: Box, tmp_path: Path, how: str) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(Path("/bin/true").read_bytes())
    copy.chmod(0o755)
    ino = copy.stat().st_ino
    told = box.run(
        "c = sys.argv[1]; a = struct.pack('QQ', ctypes.addressof(ctypes.create_string_buffer(b't')), 0)\n"
        + EXECS[how],
        copy,
    )
    ran = told.of(Kind.EXEC)[-1]
    if how == "a memfd":
        assert ran["flags"] & Flag.MEMFD
    else:
        assert ran["ino"] == ino
    assert bool(ran["flags"] & Flag.DELETED) == (how in ("a memfd", "fexecve of a deleted file"))
    assert told.of(Kind.EXIT)[-1]["exe"] == ran["path"]


def test_an_unlinked_file_that_stays_open_keeps_its_identity(box: Box, protected: Path) -> None:
    ino = protected.stat().st_ino
    told = box.run(PROTECTED + "o = os.open(f, os.O_WRONLY); os.unlink(f); os.write(o, b'z')", protected)
    write = told.one(Kind.WRITE)
    assert (write["ino"], write["path"]) == (ino, bytes(protected))
    assert write["flags"] & Flag.DELETED


def test_a_file_without_a_name_that_is_linked_in_is_told(box: Box, protected: Path) -> None:
    """O_TMPFILE, then a link from /proc/self/fd: the new name is told, and what is behind it."""
    told = box.run(
        PROTECTED
        + "d = os.path.dirname(f); o = os.open(d, os.O_TMPFILE | os.O_WRONLY, 0o755); os.write(o, b'x')\n"
        "assert call(265, -100, b'/proc/self/fd/%d' % o, -100, os.fsencode(d) + b'/tool', 0x400) == 0",
        protected,
    )
    link = told.one(Kind.LINK)
    made = protected.parent / "tool"
    assert (link["path2"], link["ino"], link["result"]) == (bytes(made), made.stat().st_ino, 0)
    assert link["flags"] & Flag.EXECUTABLE


def test_a_signal_through_a_pidfd_to_a_stranger_is_told(box: Box) -> None:
    stranger = subprocess.Popen(["/bin/sleep", "60"])
    try:
        told = box.run("p = call(434, int(sys.argv[1]), 0); print(call(424, p, 9, 0, 0))", str(stranger.pid))
        assert told.output.strip() == "0"
        event = told.one(Kind.SIGNAL)
        assert (event["a0"], event["a1"]) == (signal.SIGKILL, stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


def test_entering_other_namespaces_is_told(box: Box) -> None:
    told = box.run(
        "print(call(308, os.open('/proc/self/ns/uts', 0), 0))\n"
        "print(call(308, call(434, os.getpid(), 0), 0x4000000))"
    )
    assert told.output.split() == ["0", "0"]
    assert [e["a0"] for e in told.of(Kind.SETNS)] == [0, 0x4000000]


def test_a_leader_that_dies_first_leaves_its_threads_watched(box: Box, protected: Path) -> None:
    """The leader ends, another thread goes on and executes: its number becomes the leader's (de_thread)."""
    told = box.run(
        PROTECTED + "import threading\n"
        "def late():\n    time.sleep(0.2); os.open(f, os.O_WRONLY)\n    os.execv('/bin/cat', ['cat', f])\n"
        "threading.Thread(target=late).start(); call(60, 0)",
        protected,
    )
    assert told.one(Kind.OPEN, path=bytes(protected), a0=os.O_WRONLY | os.O_CLOEXEC)["pid"] == told.pid
    ran = told.of(Kind.EXEC)[-1]
    assert (ran["path"], ran["pid"], ran["tid"]) == (
        os.fsencode(os.path.realpath("/bin/cat")),
        told.pid,
        told.pid,
    )
    assert told.of(Kind.OPEN, path=bytes(protected), exe=ran["path"])
    assert len(told.of(Kind.EXIT, pid=told.pid)) == 1


@pytest.mark.parametrize("depth", [45, 250, 500])
def test_deep_folders_keep_their_path(box: Box, tmp_path: Path, depth: int) -> None:
    """C5: more folders than one says in a call; a cut is flagged, and the end of the path is kept."""
    (tmp_path / "/".join("d" * depth)).mkdir(parents=True)
    told = box.run(
        "os.chdir(sys.argv[1])\nfor n in range(int(sys.argv[2])): os.chdir('d')\n"
        "open('f', 'w').close(); os.chmod('f', 0o600); os.rename('f', 'g'); os.unlink('g')\n"
        "for n in range(int(sys.argv[2])): os.chdir('..'); os.rmdir('d')",
        tmp_path,
        str(depth),
    )
    whole = bytes(tmp_path) + b"/d" * depth + b"/f"
    opened, chmod = told.one(Kind.OPEN, path2=b"f"), told.one(Kind.CHMOD)
    assert opened["path"] == chmod["path"] == whole
    assert told.one(Kind.RENAME)["path2"] == whole[:-1] + b"g"
    assert not opened["flags"] & Flag.PATH_CUT


def test_a_path_of_more_than_4096_bytes_is_cut_and_flagged(box: Box, tmp_path: Path) -> None:
    """C5: its beginning is kept, so that a rule for what is above still holds."""
    told = box.run(
        "os.chdir(sys.argv[1]); n = 'n' * 250\nfor _ in range(20): os.mkdir(n); os.chdir(n)\n"
        "open('f', 'w').close(); os.unlink('f')\nfor _ in range(20): os.chdir('..'); os.rmdir(n)",
        tmp_path,
    )
    for event in (told.one(Kind.OPEN, path2=b"f"), told.one(Kind.UNLINK, path2=b"f")):
        assert event["flags"] & Flag.PATH_CUT
        assert event["path"].startswith(bytes(tmp_path / ("n" * 250)))


OVERLAY_IN_A_USER_NAMESPACE = """
assert call(272, 0x10020000) == 0  # user and mount namespaces
open('/proc/self/uid_map', 'w').write('0 0 1'); open('/proc/self/setgroups', 'w').write('deny')
open('/proc/self/gid_map', 'w').write('0 0 1')
os.chdir(sys.argv[1]); os.makedirs('up/u'); os.makedirs('up/w'); os.mkdir('m')
r = call(165, b'o', b'm', b'overlay', 0, b'lowerdir=d,upperdir=up/u,workdir=up/w,userxattr'); assert r == 0, r
"""


def test_an_overlay_of_ones_own_is_its_own_place(box: Box, protected: Path) -> None:
    """A view of its own over a protected folder: the mount is told, and the file below stays itself."""
    told = box.run(
        OVERLAY_IN_A_USER_NAMESPACE + "os.unlink('m/protected'); open('m/new', 'w').close()\n"
        "assert call(165, b'd', b'up/u', b'', 4096, 0) == 0; open('up/u/protected', 'r+').write('z')",
        protected.parent.parent,
    )
    assert told.one(Kind.UNSHARE)["a0"] == 0x10020000
    assert told.of(Kind.MOUNT)[0]["path"] == bytes(protected.parent.parent / "m")
    assert told.one(Kind.UNLINK)["path"] == b"/protected"
    assert told.of(Kind.WRITE)[-1]["path"] == bytes(protected)


def test_a_whiteout_made_by_hand_is_told(box: Box, tmp_path: Path) -> None:
    """A character device 0:0 in an upper layer hides a file of a lower one."""
    told = box.run("os.chdir(sys.argv[1]); os.mknod('bash', 0o020000, 0); os.mkfifo('p')", tmp_path)
    whiteout = told.of(Kind.MKNOD)[0]
    assert (whiteout["path"], whiteout["a0"] & 0o170000, whiteout["a1"]) == (
        bytes(tmp_path / "bash"),
        0o020000,
        0,
    )


def test_what_watches_can_be_asked_for_only_with_privilege(box: Box) -> None:
    """The numbers of programs, maps and types: refused, and the asking told."""
    told = box.run(
        "os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "print(*[call(321, n, bytes(128), 128) for n in (11, 12, 23)])"
    )
    assert told.output.split() == [str(-errno.EPERM)] * 3
    assert [(e["a0"], e["result"]) for e in told.of(Kind.BPF)] == [(n, -errno.EPERM) for n in (11, 12, 23)]


@pytest.mark.parametrize("rest", [1 << 32, 0x1234 << 32, 1 << 63, (1 << 62) | (1 << 32)])
def test_the_upper_half_of_a_calls_number_is_not_the_number(box: Box, protected: Path, rest: int) -> None:
    """The kernel takes the low half of the register alone: any value above it makes the same call."""
    told = box.run(
        PROTECTED
        + f"high = {rest} - ((1 << 64) if {rest} >> 63 else 0)\n"
        + "print(call(high | 257, -100, b, 1 | high), call(high | 82, b, b + b'2'))",
        protected,
    )
    assert int(told.output.split()[0]) >= 0
    opened = told.one(Kind.OPEN, path=bytes(protected))
    assert (opened["nr"], opened["abi"], opened["a0"]) == (257, 0, os.O_WRONLY)
    assert told.one(Kind.RENAME)["path"] == bytes(protected)
    assert not told.of(Kind.FOREIGN_ABI)


def test_a_return_from_a_signal_handler_is_no_foreign_call(box: Box) -> None:
    """The kernel leaves no number in the registers then: all bits are set, that of x32 among them."""
    told = box.run("signal.signal(signal.SIGUSR1, lambda *_: None); os.kill(os.getpid(), signal.SIGUSR1)")
    assert not told.of(Kind.FOREIGN_ABI)


@pytest.mark.parametrize("call", ["0x40000000 | 82", "0x40000000 | 316"])
def test_x32_renames_are_renames(box: Box, protected: Path, call: str) -> None:
    """Where the kernel has x32 the call is told as itself; where it has not, as a refused one."""
    arguments = "b, b + b'2'" if call.endswith("82") else "-100, b, -100, b + b'2', 0"
    told = box.run(PROTECTED + f"print(call({call}, {arguments}))", protected)
    event = told.one(Kind.RENAME)
    assert event["result"] == int(told.output)
    assert event["abi"] == 2
    assert told.one(Kind.FOREIGN_ABI)["abi"] == 2


def test_i386_calls_of_every_table_name_their_objects(
    box: Box, tmp_path: Path, program: Callable[..., Path]
) -> None:
    """C10, with names that go through a link: the 32-bit table is followed as the native one is."""
    (tmp_path / "real").mkdir()
    (tmp_path / "l").symlink_to("real")
    told = box.execute([program("int80"), tmp_path / "l" / "a", tmp_path / "l" / ".." / "real" / "b"])
    rename = told.one(Kind.RENAME)
    assert (rename["path"], rename["path2"]) == (bytes(tmp_path / "real/a"), bytes(tmp_path / "real/b"))
    assert rename["ino"] == (tmp_path / "real" / "b").stat().st_ino
