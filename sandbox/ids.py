"""65,536 user and group ids for each sandbox, used by no other sandbox of this machine at the same time.

They lie in 0x70000000..0x7fffffff, which systemd's allocation table leaves free ("Users, Groups, UIDs and
GIDs on systemd Systems"). A block of 16 ranges belongs to the process that holds the abstract socket of its
name, so that agents on one machine never share one, and a dead agent's ranges are free at once.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections import deque

from invigilator.sandbox.base import SandboxError

COUNT = 65536
FIRST = 0x7000_0000
RANGES = 4096
BLOCK = 16


class Ids:
    """The ranges of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: list[socket.socket] = []
        self._free: deque[int] = deque()
        self._next_block = 0

    def take(self) -> int:
        """The first id of a range of `COUNT`."""
        with self._lock:
            if not self._free:
                self._claim()
            return FIRST + COUNT * self._free.popleft()

    def give_back(self, first: int) -> None:
        """The sandbox is gone: the range may be used again, after all others that are free."""
        with self._lock:
            self._free.append((first - FIRST) // COUNT)

    def close(self) -> None:
        """Leave all ranges to others."""
        with self._lock:
            self._free.clear()
            for claim in self._claims:
                claim.close()
            self._claims.clear()

    def _claim(self) -> None:
        while self._next_block < RANGES // BLOCK:
            block = self._next_block
            self._next_block += 1
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0invigilator-ids-{block}")
            except OSError as error:
                claim.close()
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
            self._claims.append(claim)
            self._free.extend(range(block * BLOCK, (block + 1) * BLOCK))
            return
        self._next_block = 0
        raise SandboxError("no free range of user ids: 4,096 sandboxes are alive on this machine")
