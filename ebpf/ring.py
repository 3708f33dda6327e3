"""Kernel ring buffers as numpy arrays: no event is touched by Python itself.

Layout (kernel/bpf/ringbuf.c): a page with the consumer's position, a page with the producer's, then the data,
mapped twice in a row so that a record never wraps. Each record has an 8-byte head: its length with a busy and
a discard bit, and a page offset.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .events import EVENT

BUSY = np.uint32(1 << 31)
HEAD_BYTES = 8
FRAME = np.dtype([("head", "<u4"), ("page", "<u4"), ("event", np.void, EVENT.itemsize)])
"""One event in the ring, 200 bytes; the event is opaque, so that numpy copies it whole."""

Frames = npt.NDArray[np.void]
_NOTHING: Frames = np.empty(0, FRAME)

STRING_RECORD = np.dtype(
    [("serial", "<u4"), ("length", "<u2"), ("slot", "<u2"), ("dev", "<u4"), ("role", "<u4")]
)
"""`struct string_record` without its bytes."""

STRING_HEAD = struct.Struct("<IHHII")


class Ring:
    """The reader's end of one ring of `size` bytes."""

    def __init__(self, fd: int, size: int) -> None:
        page = mmap.PAGESIZE
        self.fd = fd
        self.size = size
        self._consumer_page = mmap.mmap(fd, page)
        self._pages = mmap.mmap(fd, page + 2 * size, prot=mmap.PROT_READ, offset=page)
        self._consumed = memoryview(self._consumer_page)[:8].cast("Q")
        self._produced = memoryview(self._pages)[:8].cast("Q")
        self._data = memoryview(self._pages)[page:]

    def produced(self) -> int:
        """Bytes ever put into the ring."""
        return self._produced[0]

    def taken(self) -> int:
        """Bytes ever given back."""
        return self._consumed[0]

    def waiting(self) -> int:
        """Bytes not yet taken."""
        return self._produced[0] - self._consumed[0]

    def ready(self, most: int) -> Frames:
        """At most `most` events, in ring order, still in the kernel's memory; shape (n,). See `release`."""
        count = min(self.waiting() // FRAME.itemsize, most)
        if not count:
            return _NOTHING
        at = self._consumed[0] & (self.size - 1)
        frames = np.frombuffer(self._data, FRAME, count, at)
        heads = frames["head"]
        if heads.max() < BUSY:
            return frames
        return frames[: np.argmax(heads >= BUSY)]

    def release(self, count: int) -> None:
        """Give the first `count` events back to the kernel; what `ready` showed is then no longer theirs."""
        self._consumed[0] += count * FRAME.itemsize

    def take_strings(self) -> Iterator[tuple[int, int, int, int, bytes]]:
        """(serial, slot, device, role, bytes) of every string waiting, until one is still being written."""
        at, end = self._consumed[0], self.produced()
        heads = self._data
        while at < end:
            offset = at & (self.size - 1)
            length = int.from_bytes(heads[offset : offset + 4], "little")
            if length & int(BUSY):
                break
            start = offset + HEAD_BYTES
            serial, size, slot, dev, role = STRING_HEAD.unpack_from(heads, start)
            start += STRING_RECORD.itemsize
            yield serial, slot, dev, role, bytes(heads[start : start + size])
            at += (HEAD_BYTES + length + 7) & ~7
            self._consumed[0] = at


class Waker:
    """Sleeps until the kernel wakes a reader of one of several rings, or `nudge` does."""

    def __init__(self, rings: list[Ring]) -> None:
        self._poller = select.epoll(len(rings) + 1)
        self._nudges = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller.register(self._nudges, select.EPOLLIN)
        for ring in rings:
            # Edge-triggered: a ring with something in it would otherwise never let anyone sleep.
            self._poller.register(ring.fd, select.EPOLLIN | select.EPOLLET)

    def sleep(self, timeout_s: float) -> bool:
        """Until woken, or the time is over; whether it was nudged."""
        nudged = any(fd == self._nudges for fd, _ in self._poller.poll(timeout_s))
        if nudged:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._nudges)
        return nudged

    def nudge(self) -> None:
        """End the sleep that lasts, or the next one; from any thread."""
        os.eventfd_write(self._nudges, 1)

    def close(self) -> None:
        """Give the descriptor back."""
        self._poller.close()
        os.close(self._nudges)
