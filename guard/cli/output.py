"""What commands print: tables to a terminal, JSON to programs; no text acts on either."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Controls (a terminal obeys ESC and C1), marks that reorder or hide text, and half surrogates."""


MIN_WIDTH = 8
"""Columns that want more share what is left."""
TEXT_WIDTH = 16
"""The last column's, which tends to hold sentences."""
GAP = 3
"""Between two columns."""


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
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False)
    widest = [max(map(cell_len, cells)) for cells in zip(columns, *lines, strict=True)]
    widths = [min(wide, MIN_WIDTH) for wide in widest[:-1]] + [min(wide, TEXT_WIDTH) for wide in widest[-1:]]
    if sum(widths) + GAP * (len(widths) - 1) > console.width:
        for record in _records(columns, lines):
            console.print(Text(record), soft_wrap=True)
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for name, width in zip(columns, widths, strict=True):
        table.add_column(Text(name), overflow="fold", min_width=width)
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)


def _records(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each line as a block, a cell a row: where columns have no room beside each other."""
    indent = max(map(len, columns), default=0) + 2
    for line in lines:
        yield "".join(f"{name:<{indent}}{cell}\n" for name, cell in zip(columns, line, strict=True))


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
