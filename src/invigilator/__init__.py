"""Invigilator: watch over AI agents in their sandboxes.

The public names are loaded when they are first used, so that a trainer's bare install needs neither numpy nor
anything else of a node.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from invigilator.guard.client import Invigilator, PenaltyClient
    from invigilator.guard.errors import GuardError
    from invigilator.guard.sdk import Result, Sandbox
    from invigilator.guard.sync import SyncSandbox
    from invigilator.incidents.records import Incident, Penalty, Report
    from invigilator.profiles.errors import PolicyError
    from invigilator.profiles.policy import Policy

__all__ = [
    "GuardError",
    "Incident",
    "Invigilator",
    "Penalty",
    "PenaltyClient",
    "Policy",
    "PolicyError",
    "Report",
    "Result",
    "Sandbox",
    "SyncSandbox",
]

_HOMES = {
    "GuardError": "guard.errors",
    "Incident": "incidents.records",
    "Invigilator": "guard.client",
    "Penalty": "incidents.records",
    "PenaltyClient": "guard.client",
    "Policy": "profiles.policy",
    "PolicyError": "profiles.errors",
    "Report": "incidents.records",
    "Result": "guard.sdk",
    "Sandbox": "guard.sdk",
    "SyncSandbox": "guard.sync",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("invigilator")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
