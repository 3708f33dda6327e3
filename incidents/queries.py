"""Named queries: one `.sql` file each under `queries/`, with its parameters declared in its first lines.

    queries.run(store, "process_tree", sandbox_id="…")

A parameter's line is `-- name Type = 'default' : meaning`; without a default it must be given. The statements
are what `Store.query` admits, so that each is also a model to copy and change.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from invigilator.incidents.engine import Limits, StoreError

if TYPE_CHECKING:
    from invigilator.incidents.store import Store

FOLDER = Path(__file__).parent / "queries"
_PARAMETER = re.compile(r"^-- (\w+) (String|UUID|DateTime|UInt64|Float64)(?: = '([^']*)')? : (.+)$")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; `default` None: it must be given."""

    name: str
    type: str
    default: str | None
    meaning: str


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query with its name, what it answers, and its parameters."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    sql: str

    def bind(self, given: Mapping[str, Any]) -> dict[str, str]:
        """All parameters, defaults filled in; StoreError for one that is missing or unknown."""
        known = {p.name: p.default for p in self.parameters}
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise StoreError(
                f"query {self.name} has no parameter {unknown[0]}; it has: {', '.join(known) or 'none'}"
            )
        bound = known | {name: str(value) for name, value in given.items()}
        missing = [name for name, value in bound.items() if value is None]
        if missing:
            raise StoreError(f"query {self.name} needs {missing[0]}=…")
        return {name: value for name, value in bound.items() if value is not None}


@functools.cache
def catalogue() -> dict[str, NamedQuery]:
    """Every named query."""
    return {path.stem: _parse(path) for path in sorted(FOLDER.glob("*.sql"))}


def find(name: str) -> NamedQuery:
    """The query of that name; StoreError lists the names there are."""
    if name not in catalogue():
        raise StoreError(f"there is no query {name}; there are: {', '.join(catalogue())}")
    return catalogue()[name]


def run(store: Store, name: str, limits: Limits | None = None, **parameters: Any) -> pa.Table:
    """The result of a named query."""
    query = find(name)
    return store.query(query.sql, query.bind(parameters), limits=limits)


def _parse(path: Path) -> NamedQuery:
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("-- ")]
    parameters = [
        Parameter(*found.groups()) for line in comments if (found := _PARAMETER.match(line)) is not None
    ]
    summary = " ".join(line[3:] for line in comments if not _PARAMETER.match(line))
    sql = "\n".join(line for line in lines if not line.startswith("-- "))
    return NamedQuery(path.stem, summary, tuple(parameters), sql)
