"""C9: what goes through an io_uring shows as submitted, though no system call stands for it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from invigilator.ebpf.events import EventClass, Kind
from invigilator.ebpf.loader import BTF_KIND_TYPEDEF, kernel_has

from .conftest import Box

NOP, CONNECT, OPENAT, OPENAT2, RENAMEAT, UNLINKAT = 0, 16, 18, 28, 35, 36
RING = """
import mmap
SETUP, ENTER = 425, 426
def ring(flags=0):
    p = ctypes.create_string_buffer(struct.pack('IIIII', 8, 8, flags, 0, 1000), 120)
    fd = call(SETUP, 8, p); assert fd >= 0, fd
    entries, = struct.unpack_from('I', p, 0)
    head, tail, mask, count, flag, dropped, array = struct.unpack_from('7I', p, 40)
    q = mmap.mmap(fd, array + 4 * entries, offset=0); sqes = mmap.mmap(fd, 64 * entries, offset=0x10000000)
    return fd, q, sqes, tail, array, entries
def submit(r, op, fd=-1, address=0, length=0, offset=0, flags=0):
    n, q, sqes, tail, array, entries = r
    at, = struct.unpack_from('I', q, tail); i = at % entries
    struct.pack_into('BBHiQQII', sqes, 64 * i, op, 0, 0, fd, offset, address, length, flags)
    struct.pack_into('I', q, array + 4 * i, i); struct.pack_into('I', q, tail, at + 1)
    return call(ENTER, n, 1, min(at + 1, 8), 1, 0, 0)  # nobody takes what is done
def name(b): keep.append(ctypes.create_string_buffer(b)); return ctypes.addressof(keep[-1])
keep = []
"""

pytestmark = pytest.mark.skipif(
    not kernel_has("btf_trace_io_uring_submit_req", BTF_KIND_TYPEDEF),
    reason="this kernel has no tracepoint io_uring_submit_req: submissions cannot be seen",
)


def test_files_named_to_a_ring(box: Box, tmp_path: Path) -> None:
    told = box.run(
        RING + "os.chdir(sys.argv[1]); open('a', 'w').close(); r = ring()\n"
        "submit(r, 18, -100, name(b'a'), 0, 0, 2)\n"
        "submit(r, 28, -100, name(b'/etc/hostname'), 24, name(struct.pack('QQQ', 0, 0, 0)))\n"
        "submit(r, 35, -100, name(b'a'), 0xffffff9c, name(b'b'))\n"
        "submit(r, 36, -100, name(b'b'))\nprint(os.listdir())",
        tmp_path,
    )
    assert told.output.strip() == "[]"
    events = told.of(Kind.IO_URING_OP)
    assert [(e["a0"], e["path2"], e["text"]) for e in events] == [
        (OPENAT, b"a", b""),
        (OPENAT2, b"/etc/hostname", b""),
        (RENAMEAT, b"b", b"a"),
        (UNLINKAT, b"b", b""),
    ]
    assert {(e["pid"], e["class"], e["a1"]) for e in events} == {(told.pid, EventClass.PRIVILEGE, 1)}


def test_a_connect_through_a_ring_names_whom(box: Box) -> None:
    told = box.run(
        RING + "r = ring(); s = socket.socket()\n"
        "submit(r, 16, s.fileno(), name(struct.pack('>2sH4s8x', b'\\2\\0', 9, bytes([127, 0, 0, 1]))), 0, 16)"
    )
    event = told.one(Kind.IO_URING_OP, a0=CONNECT)
    assert (event["family"], event["port"]) == (socket.AF_INET, 9)
    assert event["address"][-4:] == bytes([127, 0, 0, 1])


def test_what_names_nothing_is_told_at_powers_of_two(box: Box) -> None:
    told = box.run(RING + "r = ring()\nfor _ in range(100): submit(r, 0)")
    assert [e["a1"] for e in told.of(Kind.IO_URING_OP, a0=NOP)] == [1, 2, 4, 8, 16, 32, 64]


def test_a_ring_that_the_kernel_polls_is_no_way_round(box: Box) -> None:
    """IORING_SETUP_SQPOLL: a thread of the kernel's submits, and the process makes no call at all."""
    told = box.run(
        RING + "r = ring(2); n, q, sqes, tail, array, entries = r\n"
        "struct.pack_into('BBHiQQII', sqes, 0, 18, 0, 0, -100, 0, name(b'/etc/hostname'), 0, 0)\n"
        "struct.pack_into('I', q, array, 0); struct.pack_into('I', q, tail, 1); call(ENTER, n, 0, 1, 3, 0, 0)"
    )
    event = told.one(Kind.IO_URING_OP)
    assert (event["a0"], event["path2"], event["pid"]) == (OPENAT, b"/etc/hostname", told.pid)
