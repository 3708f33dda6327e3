"""Addresses pinned to a sandbox's own rules while it runs."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from invigilator.ebpf.events import Kind, Phase
from invigilator.ebpf.loader import Kernel
from invigilator.ebpf.network import NetRule, RuleError
from invigilator.ebpf.sensor import Sensor

from .conftest import Box
from .test_filter import IN_A_NAMESPACE, mapped


@pytest.fixture(scope="module", autouse=True)
def filtered(sensor: Sensor, parent_cgroup: Path) -> Iterator[None]:
    handles = sensor.attach_network(parent_cgroup)
    yield
    sensor.detach_network(handles)


ASK = IN_A_NAMESPACE + "print(ask('10.9.0.7', 80), ask('10.9.0.7', 81), ask('10.9.0.8', 80))"
WEB = NetRule.of("10.9.0.7", port_low=80, port_high=80, name="web")
BLOCK = NetRule.of("10.9.0.0/24", port_low=81, port_high=81, allow=True, name="block")


def answers(box: Box) -> list[int]:
    return [int(word) for word in box.run(ASK).output.split()]


def test_an_address_is_pinned_by_one_update_and_keeps_what_its_block_has(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.sensor.set_network(box.slot, Phase.AGENT, False, [BLOCK], own=True)
    assert answers(box) == [errno.EPERM, 0, errno.EPERM]
    updates: list[str] = []
    plain = Kernel.update

    def update(kernel: Kernel, name: str, key: bytes, value: bytes) -> None:
        updates.append(name)
        plain(kernel, name, key, value)

    monkeypatch.setattr(Kernel, "update", update)
    box.sensor.pin(box.slot, Phase.AGENT, mapped("10.9.0.7"), [WEB, BLOCK])
    assert updates == ["rules"]
    assert answers(box) == [0, 0, errno.EPERM]


def test_a_pin_is_one_sandboxs_alone_and_goes_with_its_rules(box: Box) -> None:
    other = box.sensor.register(box.sensor._registered[box.slot].sandbox_id, {})
    for slot in (box.slot, other):
        box.sensor.set_network(slot, Phase.AGENT, False, [BLOCK], own=True)
    box.sensor.pin(other, Phase.AGENT, mapped("10.9.0.7"), [WEB, BLOCK])
    assert answers(box) == [errno.EPERM, 0, errno.EPERM]
    box.sensor.unregister(other)
    box.sensor.pin(box.slot, Phase.AGENT, mapped("10.9.0.7"), [WEB])
    box.sensor.set_network(box.slot, Phase.AGENT, False, [BLOCK])
    with pytest.raises(ValueError, match="shared"):
        box.sensor.pin(box.slot, Phase.AGENT, mapped("10.9.0.7"), [WEB])
    assert answers(box) == [errno.EPERM, 0, errno.EPERM]


def test_a_pin_that_denies_names_its_rule_and_too_many_rules_are_refused(box: Box) -> None:
    box.sensor.set_network(box.slot, Phase.AGENT, True, [], own=True)
    no = NetRule.of("10.9.0.7", allow=False, protocol=socket.IPPROTO_UDP, name="no")
    box.sensor.pin(box.slot, Phase.AGENT, mapped("10.9.0.7"), [no])
    told = box.run(ASK)
    assert [int(word) for word in told.output.split()] == [errno.EPERM, errno.EPERM, 0]
    assert {one["text"] for one in told.of(Kind.NET_DENIED)} == {b"no"}
    many = [NetRule.of("10.9.0.7", port_low=port, port_high=port, name="many") for port in range(1, 18)]
    with pytest.raises(RuleError, match="17 network rules"):
        box.sensor.pin(box.slot, Phase.AGENT, mapped("10.9.0.7"), many)


def test_a_pin_of_one_phase_is_none_of_another_with_the_same_rules_and_goes_with_new_ones(box: Box) -> None:
    for phase in (Phase.SETUP, Phase.AGENT, Phase.AGENT):
        box.sensor.set_network(box.slot, phase, False, [BLOCK], own=True)
    box.sensor.pin(box.slot, Phase.SETUP, mapped("10.9.0.7"), [WEB, BLOCK])
    assert answers(box) == [errno.EPERM, 0, errno.EPERM]
    box.sensor.set_network(box.slot, Phase.AGENT, False, [BLOCK], own=True, pins={mapped("10.9.0.8"): [WEB]})
    assert answers(box) == [errno.EPERM, 0, 0]
    box.sensor.set_network(box.slot, Phase.AGENT, False, [BLOCK], own=True)
    assert answers(box) == [errno.EPERM, 0, errno.EPERM]
