"""Quantities with units: `2GiB`, `3600s`, `1MiB/s`."""

from __future__ import annotations

import re
from decimal import Decimal

BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
BYTES_MAX = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 8785, section 3.2.2.3)."""

OPERATIONS_MAX = 2**32 - 2
"""cgroup v1 and v2 keep operations a second in 32 bits, of which all ones stand for no limit
(block/blk-throttle.c)."""

_OPERATIONS = re.compile(r"([0-9]{1,10}) ?/s", re.ASCII)
_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)(/s)?", re.ASCII)
_MEANT = {
    "K": "KiB",
    "M": "MiB",
    "G": "GiB",
    "T": "TiB",
    "sec": "s",
    "second": "s",
    "seconds": "s",
    "m": "min",
} | {unit.lower(): unit for unit in (*BYTES, *SECONDS)}


class UnitError(ValueError):
    """A quantity that cannot be read; `fix` says what to write."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def parse_bytes(text: object) -> int:
    """`64MiB` → 67108864. Raises UnitError."""
    number, unit = _split(text, BYTES, example="2GiB")
    value = number * BYTES[unit]
    if value != int(value) or not 0 < value <= BYTES_MAX:
        raise UnitError(
            f"`{text}` is no whole number of bytes between 1 and {BYTES_MAX}", "write for example `2GiB`"
        )
    return int(value)


def parse_seconds(text: object) -> float:
    """`3600s` → 3600.0. Raises UnitError."""
    number, unit = _split(text, SECONDS, example="3600s")
    value = float(number * SECONDS[unit])
    if value <= 0:
        raise UnitError(f"`{text}` is no time", "write a time above 0, for example `60s`")
    return value


def parse_rate(text: object) -> int:
    """`100MiB/s` → 104857600, bytes a second. Raises UnitError."""
    if isinstance(text, str) and text.endswith("/s"):
        return parse_bytes(text.removesuffix("/s"))
    if isinstance(text, str) and _is_bytes(text):
        raise UnitError(f"`{text}` is an amount, not a rate", f"write `{text}/s`")
    raise UnitError(f"`{text}` is no rate", "write for example `100MiB/s`")


def parse_operations(text: object) -> int:
    """`2000/s` → 2000, operations a second. Raises UnitError."""
    if isinstance(text, int) and not isinstance(text, bool):
        raise UnitError(f"`{text}` has no unit", f"write `{text}/s`")
    match = _OPERATIONS.fullmatch(text) if isinstance(text, str) else None
    if match is None or not 0 < int(match[1]) <= OPERATIONS_MAX:
        raise UnitError(
            f"`{text}` is no number of operations a second between 1 and {OPERATIONS_MAX}",
            "write for example `2000/s`",
        )
    return int(match[1])


def parse_quantity(value: object) -> float:
    """A threshold in SI units: a bare number, `10s` → 10.0, `64MiB` → 67108864.0, `1MiB/s` → 1048576.0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    number, unit, per_second = _match(value, example="10s")
    if unit in BYTES:
        return float(number * BYTES[unit])
    if unit in SECONDS and not per_second:
        return float(number * SECONDS[unit])
    if unit == "" and per_second:
        return float(number)
    raise _unknown(value, unit, {**BYTES, **SECONDS}, example="10s")


def _split(value: object, units: dict[str, int] | dict[str, Decimal], example: str) -> tuple[Decimal, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        unit = "GiB" if units is BYTES else "s"
        raise UnitError(f"`{value}` has no unit", f"write for example `{value}{unit}`")
    number, unit, per_second = _match(value, example)
    if unit not in units or per_second:
        raise _unknown(value, unit, dict(units), example)
    return number, unit


def _is_bytes(text: str) -> bool:
    try:
        return parse_bytes(text) > 0
    except UnitError:
        return False


def _match(value: object, example: str) -> tuple[Decimal, str, bool]:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise UnitError(f"`{value}` is no number with a unit", f"write for example `{example}`")
    return Decimal(match[1]), match[2], match[3] is not None


def _unknown(
    value: object, unit: str, units: dict[str, object] | dict[str, int | Decimal], example: str
) -> UnitError:
    meant = _MEANT.get(unit) or _MEANT.get(unit.lower())
    number = str(value)[: len(str(value)) - len(unit)] if unit else str(value)
    fix = f"write `{number}{meant}`" if meant in units else f"write for example `{example}`"
    named = f"unknown unit `{unit}`" if unit else f"`{value}` has no unit"
    return UnitError(f"{named} (known: {', '.join(units)})", fix)
