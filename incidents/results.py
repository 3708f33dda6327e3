"""From the engine's Arrow to tables that people read: text where it is text, bytes where it is not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd

_AS_TEXT = re.compile(r"\b(UUID|IPv4|IPv6|Enum8\([^)]*\)|Enum16\([^)]*\))")
_AS_TIME = re.compile(r"\bDateTime(?:\(('[^']*')\))?(?![0-9A-Za-z])")


def select(statement: str, described: pa.Table) -> str:
    """A query for `statement` whose ids and addresses are text and whose times are timestamps.

    `described` is the engine's `DESCRIBE TABLE` of it.
    """
    columns = [(row["name"].decode(), row["type"].decode()) for row in described.to_pylist()]
    casts = [(name, kind, _readable_type(kind)) for name, kind in columns]
    if all(kind == wanted for _, kind, wanted in casts):
        return f"SELECT * FROM ({statement})"
    shown = [_quote(n) if k == w else f"CAST({_quote(n)} AS {w}) AS {_quote(n)}" for n, k, w in casts]
    return f"SELECT {', '.join(shown)} FROM ({statement})"


def _readable_type(kind: str) -> str:
    kind = _AS_TEXT.sub("String", kind)
    return _AS_TIME.sub(lambda m: f"DateTime64(0{', ' + m.group(1) if m.group(1) else ''})", kind)


def _quote(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def readable(table: pa.Table) -> pa.Table:
    """Binary columns as strings; a column that holds a value that is not UTF-8 stays binary."""
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        try:
            column = column.cast(_text_type(field.type))
        except pa.ArrowInvalid:
            pass
        columns.append(column)
        fields.append(pa.field(field.name, column.type))
    return pa.table(columns, schema=pa.schema(fields))


def _text_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_text_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_text_type(kind.key_type), _text_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _text_type(f.type)) for f in kind])
    return kind


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """As a data frame. Values that are not UTF-8 are text with surrogate escapes, as Python's file names are:
    `value.encode("utf-8", "surrogateescape")` gives the bytes back."""
    frame = table.to_pandas()
    for field in table.schema:
        if pa.types.is_binary(field.type):
            frame[field.name] = frame[field.name].map(_escape).astype(object)
    return frame


def _escape(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
