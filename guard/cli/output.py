"""What commands print: tables to a terminal, JSON to programs; no text acts on either."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Controls (a terminal obeys ESC and C1), marks that reorder or hide text, and half surrogates."""


MIN_WIDTH = 8
"""Columns that want more share what is left."""


def plain(value: object) -> str:
    """`value` as one line of text that a terminal only shows: everything unsafe is written as an escape."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    return _UNSAFE.sub(_escape, str(value))


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    names = {9: "\\t", 10: "\\n", 13: "\\r", 27: "\\e"}
    return names.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def print_json(value: Any) -> None:
    """`value` as JSON in ASCII, so that no byte of it can act on a terminal."""
    print(json.dumps(value, indent=2, default=_jsonable))


def _jsonable(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, brief: Sequence[str] | None = None
) -> None:
    """A table: drawn for a terminal, there only its columns in `brief`; else tab-separated and whole."""
    lines = [[_cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for line in lines:
            print("\t".join(line))
        return
    shown = [index for index, name in enumerate(columns) if brief is None or name in brief]
    _draw([columns[index] for index in shown], [[line[index] for index in shown] for line in lines])


def _draw(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for index, name in enumerate(columns):
        widest = max((len(line[index]) for line in lines), default=0)
        table.add_column(Text(name), overflow="fold", min_width=min(max(widest, len(name)), MIN_WIDTH))
    for line in lines:
        table.add_row(*map(Text, line))
    Console(markup=False, highlight=False, emoji=False).print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain(value)


def write_bytes(content: bytes) -> None:
    """Bytes for a program; to a terminal, text that it only shows, line by line."""
    if not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    for line in content.decode("utf-8", "replace").splitlines():
        print(plain(line))
