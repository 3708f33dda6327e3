"""Policy → the policy language, with everything said: read again it is the same policy, versions and all."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from invigilator.profiles.policy import IoLimits, Limits, Policy
from invigilator.profiles.units import BYTES

_BINARY = ("TiB", "GiB", "MiB", "KiB")


def written(policy: Policy) -> dict[str, Any]:
    """The policy as a mapping to write as YAML; `extends` and units are resolved into it."""
    said: dict[str, Any] = _without_none(policy.model_dump(mode="json", exclude={"limits"}))
    limits = _without_none(_limits(policy.limits))
    return {
        key: limits if key == "limits" else said[key]
        for key in Policy.model_fields
        if key == "limits" or key in said
    }


def _limits(limits: Limits) -> dict[str, Any]:
    return {
        "memory": _bytes(limits.memory_bytes),
        "cpus": limits.cpus,
        "pids": limits.pids,
        "disk": _bytes(limits.disk_bytes),
        "output": _bytes(limits.output_bytes),
        "ttl": f"{Decimal(repr(limits.ttl_s)).normalize():f}s",
        "io": _io(limits.io) or None,
    }


def _io(io: IoLimits) -> dict[str, str]:
    rates = {"read": io.read_bytes_per_s, "write": io.write_bytes_per_s}
    operations = {"read_ops": io.read_ops_per_s, "write_ops": io.write_ops_per_s}
    return {
        **{name: f"{_bytes(rate)}/s" for name, rate in rates.items() if rate is not None},
        **{name: f"{rate}/s" for name, rate in operations.items() if rate is not None},
    }


def _bytes(count: int) -> str:
    unit = next((unit for unit in _BINARY if count % BYTES[unit] == 0), "B")
    return f"{count // BYTES[unit]}{unit}"


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
