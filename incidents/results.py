"""From the engine's Arrow to tables that people read: text where it is text, bytes where it is not."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from invigilator.incidents.engine import StoreError

if TYPE_CHECKING:
    import pandas as pd

_AS_TEXT = re.compile(r"\b(UUID|IPv4|IPv6|Enum8\([^)]*\)|Enum16\([^)]*\))")
_AS_TIME = re.compile(r"\bDateTime(?:\(('[^']*')\))?(?![0-9A-Za-z])")


def select(statement: str, described: pa.Table) -> str:
    """A query for `statement` whose ids and addresses are text and whose times are timestamps.

    `described` is the engine's `DESCRIBE TABLE` of it.
    """
    columns = [(row["name"].decode(), row["type"].decode()) for row in described.to_pylist()]
    names = [name for name, _ in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StoreError(f"two columns of the result are named {twice[0]}: give one another name with AS")
    shown = ", ".join(_show(name, kind, _readable_type(kind)) for name, kind in columns)
    return f"SELECT {shown} FROM ({statement})"


def _show(name: str, kind: str, wanted: str) -> str:
    # A constant is counted once by the engine's limits however many rows repeat it, unless made a column.
    value = f"materialize({_quote(name)})"
    return f"{value if kind == wanted else f'CAST({value} AS {wanted})'} AS {_quote(name)}"


def _readable_type(kind: str) -> str:
    kind = _AS_TEXT.sub("String", kind)
    return _AS_TIME.sub(lambda m: f"DateTime64(0{', ' + m.group(1) if m.group(1) else ''})", kind)


def _quote(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def readable(table: pa.Table) -> pa.Table:
    """Binary columns as strings; a column that holds a value that is not UTF-8, or a type that
    Arrow cannot convert, stays as it is."""
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        with contextlib.suppress(pa.ArrowException, ValueError):
            column = column.cast(_text_type(field.type))
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


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Pieces of one result as one table; a column that is binary in some piece is so in all."""
    binary = {field.name for table in tables for field in table.schema if pa.types.is_binary(field.type)}
    return pa.concat_tables([_with_binary(table, binary) for table in tables])


def _with_binary(table: pa.Table, names: set[str]) -> pa.Table:
    for place, field in enumerate(table.schema):
        if field.name in names and not pa.types.is_binary(field.type):
            table = table.set_column(place, field.name, table[field.name].cast(pa.binary()))
    return table


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """As a data frame. Values that are not UTF-8 are text with surrogate escapes, as Python's file names are:
    `value.encode("utf-8", "surrogateescape")` gives the bytes back."""
    import pandas as pd  # only here: it is half a second of every other start

    frame = table.to_pandas()
    for field in table.schema:
        if pa.types.is_binary(field.type):
            words = [_escape(value) for value in frame[field.name]]
            frame[field.name] = pd.Series(words, index=frame.index, dtype=object)
    assert isinstance(frame, pd.DataFrame)
    return frame


def _escape(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
