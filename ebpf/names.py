"""Where the kernel keeps the names of files: its table of them, by hash (fs/dcache.c).

The kernel tells its address to nobody, so it is found out from names of which the place in it is known.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from .events import Records
from .layout import PLACED
from .loader import Kernel

SAMPLES = 64
ENOUGH = 8
"""Names whose places must agree."""
PAGE_BYTES = 4096
POINTER_BYTES = 8
SHIFTS = range(4, 25)
"""By how much a hash may be shifted: tables of 256 to 268 million chains."""


def find_table(kernel: Kernel) -> tuple[int, int]:
    """(address of the table, shift from a 32-bit hash to a place in it); (0, 0) where it is not found."""
    with ThreadPoolExecutor(1) as anew:  # a thread that nobody has looked at: its names in /proc are new
        return infer(anew.submit(_sample, kernel).result())


def _sample(kernel: Kernel) -> Records:
    placed = np.zeros(SAMPLES, PLACED)
    known = np.zeros(SAMPLES, np.bool_)
    for at, fd in enumerate(islice(_fresh_names(), SAMPLES)):
        placed[at]["fd"] = fd
        known[at] = kernel.run("control_placed", placed[at : at + 1]) == 0
    return placed[known]


def infer(placed: Records) -> tuple[int, int]:
    """The same from samples of dtype `PLACED`, shape (n,).

    The first name of a chain is pointed to from the table itself, any other from the name before it; so the
    first ones agree on where the table begins for one shift only. One hash that is counted otherwise than in
    the kernel is enough to trust none.
    """
    placed = placed[placed["place"] != 0]
    if (placed["hash"] != placed["counted"]).any():
        return 0, 0
    found = [(0, 0, 0), (0, 0, 0)]
    for shift in SHIFTS:
        begins = placed["place"] - (placed["hash"] >> np.uint32(shift)).astype(np.uint64) * POINTER_BYTES
        tables, votes = np.unique(begins[begins % PAGE_BYTES == 0], return_counts=True)
        found += [(count, table, shift) for count, table in zip(votes.tolist(), tables.tolist(), strict=True)]
    second, first = sorted(found)[-2:]
    return first[1:] if first[0] >= ENOUGH and first[0] > 2 * second[0] else (0, 0)


def _fresh_names() -> Iterator[int]:
    """Descriptors, each open until the next, of names looked up just now: each is first in its chain."""
    for folder in (Path("/proc/thread-self"), Path("/proc/self"), Path("/proc")):
        for name in sorted(folder.iterdir()):
            try:
                fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:  # of a process that has ended
                continue
            try:
                yield fd
            finally:
                os.close(fd)
