"""Which events a researcher asks for, as a SELECT that is read piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

When = datetime | str
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAR = datetime(2100, 1, 1, tzinfo=UTC)
"""Times past these are no times of a record, and the store cannot compare them."""


@dataclass(frozen=True, slots=True)
class Which:
    """Which events are asked for."""

    rollout_id: str | None
    run_id: str | None
    sandbox_id: str | None
    labels: Mapping[str, str]
    since: When | None
    until: When | None
    kinds: tuple[str, ...]
    refused: bool | None

    def __post_init__(self) -> None:
        if not (self.rollout_id or self.run_id or self.sandbox_id or self.labels or self.since):
            raise TypeError("give rollout_id, sandbox_id, run_id, labels or since")

    def statement(self) -> tuple[str, dict[str, Any]]:
        """The SELECT of one piece, and its parameters but for the place."""
        where = ["(sandbox_id > {box:UUID} OR (sandbox_id = {box:UUID} AND seq > {seq:UInt64}))"]
        given: dict[str, Any] = {}
        for name, kind in (("rollout_id", "String"), ("run_id", "String"), ("sandbox_id", "UUID")):
            if getattr(self, name) is not None:
                where.append(f"{name} = {{{name}:{kind}}}")
                given[name] = getattr(self, name)
        for name, sign, at in (("since", ">=", self.since), ("until", "<", self.until)):
            if at is not None:
                where.append(f"wall_time {sign} fromUnixTimestamp64Micro({{{name}:Int64}})")
                given[name] = microseconds(datetime.fromisoformat(iso(at)))
        if self.labels:
            parts = []
            for number, (key, value) in enumerate(self.labels.items()):
                parts.append(f"labels[{{k{number}:String}}] = {{v{number}:String}}")
                given |= {f"k{number}": key, f"v{number}": value}
            where.append(f"sandbox_id IN (SELECT sandbox_id FROM rollouts WHERE {' AND '.join(parts)})")
        if self.kinds:
            where.append("has(splitByChar(',', {kinds:String}), kind)")
            given["kinds"] = ",".join(self.kinds)
        if self.refused is not None:
            where.append("refused" if self.refused else "NOT refused")
        chosen = " AND ".join(where)
        return (
            f"SELECT * FROM events_readable WHERE {chosen} ORDER BY sandbox_id, seq LIMIT {{rows:UInt64}}",
            given,
        )


def microseconds(at: datetime) -> int:
    """A time as the store's statements take it: microseconds since 1970, no further than a record's go."""
    return (min(max(at, EPOCH), FAR) - EPOCH) // timedelta(microseconds=1)


def iso(at: When) -> str:
    """A time with its zone, as ISO 8601; without a zone it is UTC."""
    found = datetime.fromisoformat(at) if isinstance(at, str) else at
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).isoformat()
