"""The service's own statements (`sql/*.sql`), and rows of the store as plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from invigilator.incidents.results import readable
from invigilator.incidents.store import Store

FOLDER = Path(__file__).parent / "sql"
STATEMENTS = {path.stem: path.read_text() for path in FOLDER.glob("*.sql")}
"""Read at import: after the drop of privileges the files may be out of reach."""


def fetch(store: Store, name: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a statement as JSON objects."""
    return objects(store.select(STATEMENTS[name], parameters))


def objects(table: pa.Table) -> list[dict[str, Any]]:
    """A table's rows as JSON objects."""
    rows: list[dict[str, Any]] = readable(table).to_pylist(maps_as_pydicts="lossy")
    return [{name: plain(value) for name, value in row.items()} for row in rows]


def plain(value: Any) -> Any:
    """A value as JSON has it. Bytes that are no UTF-8 are shown as `\\xNN`; what is no number is null; whole
    numbers past 2^53 stay exact."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, str | int):
        return value
    return str(value)
