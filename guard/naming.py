"""Names that a sandbox asks for: their addresses go into the kernel, refusals into the record."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Mapping, Sequence

from invigilator.ebpf import network as kernel_rules
from invigilator.ebpf.events import EventClass, Kind, NetHook, Phase, Tier
from invigilator.ebpf.sensor import Sensor
from invigilator.profiles.network import NetRule, mapped
from invigilator.profiles.policy import PhaseName
from invigilator.sandbox import resolver
from invigilator.sandbox.base import LimitHit, NameEvents


def name_events(sensor: Sensor, slot: int, phases: Mapping[PhaseName, Phase]) -> NameEvents:
    """What the sandbox in a slot of the sensor's has told of its names."""
    here = mapped(ipaddress.ip_address(resolver.ADDRESS))

    def pin(phase: PhaseName, address: bytes, rules: Sequence[NetRule]) -> None:
        sensor.pin(slot, phases[phase], address, [kernel_rules.NetRule(*rule) for rule in rules])

    def refused(phase: PhaseName, name: str, rule: str) -> None:
        now = int(phases[phase])
        sensor.emit(
            slot,
            Kind.NET_DENIED,
            text=rule.encode(),
            path2=name.encode(),
            class_=int(EventClass.NETWORK),
            tiers=int(Tier.AGENT),
            phase=now,
            origin_phase=now,
            a0=int(NetHook.NAME),
            result=-errno.EPERM,
            family=socket.AF_INET,
            port=resolver.PORT,
            protocol=socket.IPPROTO_UDP,
            address=int.from_bytes(here),
        )

    def limit(hit: LimitHit) -> None:
        sensor.emit(
            slot,
            Kind.LIMIT,
            text=hit.limit.encode(),
            class_=int(EventClass.NETWORK),
            a0=hit.value,
            a1=hit.maximum,
        )

    return NameEvents(pin, refused, limit)
