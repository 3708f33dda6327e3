"""Canonical JSON (RFC 8785) and the versions of a policy's three parts."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from invigilator.profiles.policy import Policy

INTEGER_MAX = 2**53 - 1
"""The largest integer that a JSON number, an IEEE 754 double, keeps exact."""

CONFINEMENT = (
    "mode", "require", "filesystem", "network", "limits", "syscalls", "apparmor", "seccomp", "phases",
)  # fmt: skip
"""Keys of the policy that say what a sandbox may do (of `filesystem` all but the canaries)."""
LATER = ("apparmor", "seccomp", "default_action", "files", "default_bind", "bind", "io")
"""Keys of confinement that the language got later. Where one is not used it is in no version, so that a
policy which does not use it keeps the versions that it had."""
DETECTION = ("detectors", "filesystem", "network", "phases")
"""Keys that detectors judge by: what may be done and what is judged meet in path classes and rules."""


class Versions(NamedTuple):
    """`sha256:` and the hex digits of each part's canonical JSON, defaults filled in."""

    confinement: str
    detection: str
    penalty: str


def policy_versions(policy: Policy) -> Versions:
    """The versions of a policy. Its name is in none of them: two policies that say the same are the same."""
    return Versions(*(version(part) for part in parts(policy)))


def parts(policy: Policy) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(confinement, detection, penalty) as JSON values, defaults filled in."""
    confined, whole = _used(policy, LATER), _used(policy, ())
    detection = {key: whole[key] for key in DETECTION}
    confined["filesystem"].pop("canaries")
    return {key: confined[key] for key in CONFINEMENT if key in confined}, detection, whole["penalty"]


def _used(policy: Policy, later: Sequence[str]) -> dict[str, Any]:
    """The policy as JSON, of the keys `LATER` only those of `later` that say something."""
    whole = policy.model_dump(mode="json")
    unused = Policy(name="").model_dump(mode="json")
    binds = {key: unused["network"][key] for key in ("default_bind", "bind")}
    tables = [(whole, unused), (whole["filesystem"], unused["filesystem"]), (whole["network"], binds)]
    tables.append((whole["limits"], unused["limits"]))
    for phase in whole["phases"].values():
        tables += [(phase, {"apparmor": None, "seccomp": None}), (phase["network"] or {}, binds)]
    for table, default in tables:
        for key in LATER:
            if key in table and key in default and (key not in later or table[key] == default[key]):
                del table[key]
    return whole


def version(value: object) -> str:
    """`sha256:` and the hex SHA-256 of the canonical JSON of `value`."""
    return "sha256:" + hashlib.sha256(dumps(value)).hexdigest()


def dumps(value: object) -> bytes:
    """`value` as canonical JSON. ValueError for what RFC 8785 cannot write: a number that is not finite, an
    integer beyond ±(2^53 - 1), a lone surrogate; TypeError for what is no JSON."""
    return _write(value).encode("utf-8")


def _write(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return "[" + ",".join(map(_write, value)) + "]"
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _integer(value: int) -> str:
    if abs(value) > INTEGER_MAX:
        raise ValueError(f"{value} is beyond the integers that JSON keeps exact")
    return str(int(value))


def _object(value: Mapping[Any, object]) -> str:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"a key is {type(key).__name__}, not a string")
    keys = sorted(value, key=lambda key: key.encode("utf-16-be", "strict"))
    return "{" + ",".join(f"{_string(key)}:{_write(value[key])}" for key in keys) + "}"


def number(value: float) -> str:
    """A double as ECMAScript's Number::toString writes it (ECMA-262, 6.1.6.1.20)."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent or 0)
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    return sign + _place_point(digits, point)


def _place_point(digits: str, point: int) -> str:
    """`0.digits × 10^point` in ECMAScript's choice of notation."""
    if len(digits) <= point <= 21:
        return digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{rest}e{point - 1:+d}"
