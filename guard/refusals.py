"""Who tells of refusals on this node: the kernel's audit records, or the refused calls' own events."""

from __future__ import annotations

import logging

from invigilator.ebpf.sensor import Sensor
from invigilator.guard.denials import Denials
from invigilator.guard.refused import RefusedCalls
from invigilator.sandbox import apparmor
from invigilator.sandbox.audit import AuditReader
from invigilator.sandbox.base import UnavailableError
from invigilator.sandbox.hierarchies import Hierarchies

Refusals = Denials | RefusedCalls

_log = logging.getLogger("invigilator.refusals")


def open_here(sensor: Sensor) -> Refusals:
    """By audit where AppArmor refuses: its refusals have no events, and the filter's are logged too."""
    if apparmor.tier().state == "absent":
        return RefusedCalls(sensor)
    try:
        return Denials(sensor, AuditReader(), Hierarchies.find().v2_root)
    except UnavailableError as error:
        _log.warning("refusals of AppArmor are not recorded: %s", error)
        return RefusedCalls(sensor)
