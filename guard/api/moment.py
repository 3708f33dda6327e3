"""What the store had at a time: rows count by when they arrived, not by when they were made.

A row that comes late, from a node that was cut off, bears an old date; an answer as of a time before it came
must not have it. So the ledger of segments decides, whose times are the store's own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import STATEMENTS
from invigilator.incidents.results import readable
from invigilator.incidents.store import Store

ARRIVED = "{{arrived}}"
_BY_THEN = (
    "segment_id IN (SELECT segment_id FROM segments "
    "WHERE ingested_at <= parseDateTime64BestEffort({as_of:String}, 6, 'UTC'))"
)


@dataclass(frozen=True, slots=True)
class Moment:
    """The time that an answer is of. `past`: it was asked for; else it is now, and all there is counts."""

    at: datetime
    past: bool

    @classmethod
    def of(cls, store: Store, asked: datetime | None) -> Moment:
        """The time asked for, else now by the store's clock; 422 for one that has not come yet."""
        now: datetime = store.select("SELECT now64(6, 'UTC') AS now")["now"][0].as_py()
        if asked is None:
            return cls(now, False)
        if asked.tzinfo is None:
            raise ProblemError(422, "invalid-request", "body.as_of: a time needs its offset, such as Z")
        if asked > now:
            fix = f"the store's clock says {now.isoformat()}"
            raise ProblemError(422, "time-to-come", f"as_of {asked.isoformat()} has not come yet", fix=fix)
        return cls(asked.astimezone(UTC), True)

    def columns(self, store: Store, name: str, parameters: Mapping[str, Any]) -> dict[str, list[Any]]:
        """The result of a statement by column, of the rows that had arrived by then."""
        sql = STATEMENTS[name].replace(ARRIVED, _BY_THEN if self.past else "1")
        table: pa.Table = readable(store.select(sql, {**parameters, "as_of": self.at.isoformat()}))
        return {column: values(table[column]) for column in table.column_names}


def values(column: pa.ChunkedArray) -> list[Any]:
    """A column as Python's values, ids as bytes; through numpy, ten times as fast, where that is the same."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.chunked_array([part.storage for part in column.chunks], kind.storage_type)
        kind = column.type
    through = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_fixed_size_binary)
    if column.null_count or not any(fits(kind) for fits in through):
        found: list[Any] = column.to_pylist()
        return found
    return list(column.to_numpy().tolist())
