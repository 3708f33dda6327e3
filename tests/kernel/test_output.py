"""Bytes: recorded streams apart from files, summed in the kernel."""

from __future__ import annotations

import os
import pty
from pathlib import Path

from invigilator.ebpf.events import EventBatch, EventClass, Flag, Kind

from .conftest import Box


def sums(batch: EventBatch, kind: Kind) -> tuple[int, int, int]:
    """Bytes, writes, and the last total of all events of a kind."""
    part = batch.records[batch.records["kind"] == int(kind)]
    return int(part["a0"].sum()), int(part["a1"].sum()), int(part["a2"].max(initial=0))


def flushed(box: Box, batch: EventBatch) -> EventBatch:
    box.sensor.flush(box.slot)
    return EventBatch.concat([batch, box.events()])


def test_output_is_the_bytes_of_the_recorded_pipe_only(box: Box, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    box.sensor.set_stream(box.slot, reader)
    try:
        told = box.run(
            "w = int(sys.argv[1])\nfor _ in range(100): os.write(w, b'x' * 10)\n"
            "r, o = os.pipe(); os.write(o, b'y' * 1000)\n"
            "f = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY)\nfor _ in range(7): os.write(f, b'z' * 3)",
            str(writer),
            tmp_path / "f",
            pass_fds=[writer],
        )
        batch = flushed(box, told.batch)
        assert sums(batch, Kind.OUTPUT) == (1000, 100, 1000)
        assert sums(batch, Kind.FILE_BYTES) == (21, 7, 21)
        rows = batch.records[batch.records["kind"] == int(Kind.OUTPUT)]
        assert (rows["class"] == int(EventClass.OUTPUT)).all()
        assert len(rows) <= 4
    finally:
        os.close(reader)
        os.close(writer)


def test_output_through_a_terminal_and_its_other_names(box: Box) -> None:
    """/dev/tty and the terminal's own file are the same stream."""
    master, slave = pty.openpty()
    box.sensor.set_stream(box.slot, master)
    try:
        told = box.run(
            "import fcntl\nfd = int(sys.argv[1]); os.setsid(); fcntl.ioctl(fd, 0x540e, 0)\n"
            "os.write(fd, b'a' * 5); t = os.open('/dev/tty', os.O_WRONLY); os.write(t, b'b' * 7)\n"
            "n = os.open(os.ttyname(fd), os.O_WRONLY); os.write(n, b'c' * 9)",
            str(slave),
            pass_fds=[slave],
        )
        assert sums(flushed(box, told.batch), Kind.OUTPUT) == (21, 3, 21)
    finally:
        os.close(master)
        os.close(slave)


def test_splice_and_sendfile_into_the_stream_count(box: Box, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    reader, writer = os.pipe()
    box.sensor.set_stream(box.slot, writer)
    try:
        told = box.run(
            "f = os.open(sys.argv[2], 0); w = int(sys.argv[1])\n"
            "call(40, w, f, 0, 40); os.lseek(f, 0, 0); call(275, f, 0, w, 0, 60, 0)",
            str(writer),
            tmp_path / "f",
            pass_fds=[writer],
        )
        assert sums(flushed(box, told.batch), Kind.OUTPUT) == (100, 2, 100)
        assert not told.of(Kind.COPY_RANGE)
    finally:
        os.close(reader)
        os.close(writer)


def test_copies_into_files_are_file_bytes(box: Box, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    told = box.run(
        "a = os.open(sys.argv[1] + '/a', 0); b = os.open(sys.argv[1] + '/b', os.O_CREAT | os.O_WRONLY)\n"
        "call(326, a, 0, b, 0, 100, 0)",
        tmp_path,
    )
    assert sums(flushed(box, told.batch), Kind.FILE_BYTES) == (100, 1, 100)
    assert not told.of(Kind.WRITE)


def test_sums_are_sent_while_a_program_goes_on(box: Box, tmp_path: Path) -> None:
    told = box.run(
        "f = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "for _ in range(4): os.write(f, b'x' * 10); time.sleep(0.15)",
        tmp_path / "f",
    )
    rows = told.of(Kind.FILE_BYTES)
    assert len(rows) >= 3
    assert rows[-1]["a2"] >= 30
    assert rows[-1]["flags"] & Flag.RECORDED_STREAM == 0
    assert rows[-1]["path"] == b""
