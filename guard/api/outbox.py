"""Rows that the service itself makes (reviews, revisions, deliveries, audit): spooled first, like all others,
then stored exactly once."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pyarrow as pa

from invigilator.guard.api.problem import ProblemError
from invigilator.incidents.spool import Spool, SpoolFullError
from invigilator.incidents.store import Store

TOGETHER = 64
"""So many segments go to the store in one call."""


class Outbox:
    """A spool of the service's own in `folder`. Its stores are fed by the store's thread only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spool: Spool | None = None
        self._opening = threading.Lock()
        self.waiting = True
        """Whether rows may wait for the store; at first, what an earlier end left."""

    def put(self, store: Store, table: str, rows: pa.Table) -> None:
        """Make rows durable and bring them, and what an earlier end left waiting, to the store."""
        self.spool(table, rows)
        self.flush(store)

    def spool(self, table: str, rows: pa.Table, segment_id: uuid.UUID | None = None) -> None:
        """Make rows durable; they are in the store with the next `flush`. Rows of one `segment_id` are stored
        once, however often they are written. 503 where the disk is full."""
        try:
            self._opened().append(table, rows, None, segment_id=segment_id)
        except SpoolFullError as error:
            raise ProblemError(503, "no-space", str(error), retry_after_s=5.0) from error
        self.waiting = True

    def flush(self, store: Store) -> None:
        """Bring to the store what waits."""
        spool = self._opened()
        self.waiting = False
        try:
            pending = spool.pending()
            for start in range(0, len(pending), TOGETHER):
                some = pending[start : start + TOGETHER]
                store.ingest_together([(one.read_bytes(), one.header()) for one in some])
                for one in some:
                    spool.acknowledge(one)
        except BaseException:
            self.waiting = True
            raise

    def close(self) -> None:
        """Let another process open the folder."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _opened(self) -> Spool:
        with self._opening:
            if self._spool is None:
                self._spool = Spool(self._folder)
            return self._spool
