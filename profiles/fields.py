"""Values of a policy's YAML: what each may be, how it is read, and what is said where it is wrong."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from invigilator.profiles import names, network, paths, units
from invigilator.profiles.apparmor import statements

_Q = TypeVar("_Q", int, float)
NAME = r"[a-z0-9][a-z0-9_.-]{0,63}"


def _refused(message: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("policy", "{message}", {"message": message, "fix": fix})


def _path(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return paths.to_text(paths.to_bytes(value))
        except ValueError as error:
            message, _, fix = str(error).partition("; ")
            raise _refused(message, fix) from error
    return value


def _read_by(parse: Callable[[object], _Q]) -> Callable[[Any], _Q]:
    """The validator of a quantity that `parse` reads."""

    def read(value: Any) -> _Q:
        try:
            return parse(value)
        except units.UnitError as error:
            raise _refused(str(error), error.fix) from error

    return read


def _target(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if "*" in value and not names.is_name(value):
        raise _refused(
            f"`{value}`: a wildcard is one `*.` before a zone of two labels or more",
            "write `*.example.org`, list the names, or write the addresses as a CIDR",
        )
    try:
        found = network.target_network(value)
    except ValueError as error:
        raise _refused(str(error), "write a host name, an address or a CIDR such as 192.0.2.0/24") from error
    if found is not None and network.holds_mapped(found):
        raise _refused(f"`{value}` holds all of IPv4 too (::ffff:0:0/96)", "write 2000::/3 for public IPv6")
    return value if found is None else str(found)


def _block(value: Any) -> Any:
    found = _target(value)
    if isinstance(found, str) and network.target_network(found) is None:
        raise _refused(f"`{value}` is no address", "write an address or a CIDR such as 192.0.2.0/24")
    return found


def _raw_rule(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return statements.one(value)
        except statements.RuleError as error:
            raise _refused(str(error), error.fix) from error
    return value


def call_action(value: Any) -> Any:
    """Only answers that kill nobody."""
    if isinstance(value, str) and value not in ("SCMP_ACT_ERRNO", "SCMP_ACT_LOG"):
        if value == "SCMP_ACT_ALLOW":
            raise _refused("what no rule refuses is allowed already", "remove the rule, or edit `syscalls`")
        raise _refused(
            f"`{value}` is not answered here: a refused call gets an errno", "write `SCMP_ACT_ERRNO`"
        )
    return value


def errno_name(value: Any) -> Any:
    """A name of errno(3)."""
    if isinstance(value, str) and value not in errno.errorcode.values():
        raise _refused(f"`{value}` is no errno", "write a name of errno(3), such as `EPERM`")
    return value


def _word(value: Any) -> Any:
    return int(value, 16) if isinstance(value, str) and re.fullmatch("0x[0-9a-fA-F]{1,16}", value) else value


def list_or_table(value: Any) -> Any:
    """A class's bare list of paths stands for a table."""
    return {"paths": value} if isinstance(value, list) else value


Path = Annotated[
    str,
    BeforeValidator(_path),
    WithJsonSchema(
        {"type": "string", "pattern": "^/", "description": "Absolute, taken literally; \\xNN is a byte"}
    ),
]
Size = Annotated[
    int,
    BeforeValidator(_read_by(units.parse_bytes)),
    WithJsonSchema(
        {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?([KMGT]i|[kMGT])?B$", "examples": ["2GiB"]}
    ),
]
Rate = Annotated[
    int,
    BeforeValidator(_read_by(units.parse_rate)),
    WithJsonSchema(
        {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?([KMGT]i|[kMGT])?B/s$", "examples": ["100MiB/s"]}
    ),
]
Operations = Annotated[
    int,
    BeforeValidator(_read_by(units.parse_operations)),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]+ ?/s$", "examples": ["2000/s"]}),
]
Duration = Annotated[
    float,
    BeforeValidator(_read_by(units.parse_seconds)),
    WithJsonSchema(
        {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(ms|s|min|h|d)$", "examples": ["3600s"]}
    ),
]
Quantity = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    BeforeValidator(_read_by(units.parse_quantity)),
    WithJsonSchema({"type": ["number", "string"], "examples": [20, "10s", "64MiB", "1MiB/s"]}),
]
Target = Annotated[
    str,
    BeforeValidator(_target),
    WithJsonSchema({"type": "string", "examples": ["files.example.org", "192.0.2.0/24"]}),
]
Block = Annotated[
    str,
    BeforeValidator(_block),
    WithJsonSchema({"type": "string", "examples": ["127.0.0.1", "192.0.2.0/24"]}),
]
Port = Annotated[int, Field(ge=1, le=65535)]
OwnPort = Annotated[int, Field(ge=0, le=65535)]
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
CallName = Annotated[str, Field(pattern="^[a-z0-9_]+$")]
Word64 = Annotated[
    int,
    Field(ge=0, lt=1 << 64),
    BeforeValidator(_word),
    WithJsonSchema(
        {"type": ["integer", "string"], "pattern": "^0x[0-9a-fA-F]{1,16}$", "examples": ["0x40000"]}
    ),
]
RawRule = Annotated[str, BeforeValidator(_raw_rule), WithJsonSchema({"type": "string"})]
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
