"""Rows that the service itself makes (reviews): spooled first, like all others, then stored exactly once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store


class Outbox:
    """A spool of the service's own in `folder`; used by the store's thread only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spool: Spool | None = None

    def put(self, store: Store, table: str, rows: pa.Table) -> None:
        """Make rows durable and bring them, and what an earlier end left waiting, to the store."""
        self._opened().append(table, rows, None)
        self.flush(store)

    def flush(self, store: Store) -> None:
        """Bring to the store what waits."""
        spool = self._opened()
        for segment in spool.pending():
            store.ingest(segment.read_bytes(), segment.header())
            spool.acknowledge(segment)

    def close(self) -> None:
        """Let another process open the folder."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _opened(self) -> Spool:
        if self._spool is None:
            self._spool = Spool(self._folder)
        return self._spool
