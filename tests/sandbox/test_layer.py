"""Writable layers: fresh file systems, of which nothing outlives its sandbox."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from invigilator.profiles import limits
from invigilator.profiles.limits import LimitValues
from invigilator.profiles.policy import Limits, Policy
from invigilator.sandbox.device import Device
from invigilator.sandbox.files import opened
from invigilator.sandbox.layer import PARTS, Layer, Layers

SECRET = b"what the sandbox before wrote down " * 4096
SIZE = 64 << 20


@pytest.fixture
def wanted() -> LimitValues:
    return limits.compile(Policy(name="t", limits=Limits(memory_bytes=SIZE, disk_bytes=SIZE)))


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    made = Layers(tmp_path, stock=1)
    yield made
    made.close()


def _write(layer: Layer) -> None:
    fd = os.open("workspace/upper/secret", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, dir_fd=layer.fd)
    os.write(fd, SECRET)
    os.fsync(fd)
    os.close(fd)


def _content(layer: Layer) -> bytes:
    assert layer.device is not None
    os.sync()
    return Path(layer.device.path).read_bytes()


def _spare(layers: Layers) -> Device:
    deadline = time.monotonic() + 60
    while not layers._spare:
        assert time.monotonic() < deadline, "the device was not kept"
        time.sleep(0.01)
    return layers._spare[0]


def _stocked(layers: Layers) -> Layer:
    deadline = time.monotonic() + 60
    while not layers._ready:
        assert time.monotonic() < deadline, "no layer was kept in stock"
        time.sleep(0.01)
    return layers._ready[0]


def test_a_device_that_is_used_again_holds_nothing_of_its_last_sandbox(
    tmp_path: Path, wanted: LimitValues
) -> None:
    layers = Layers(tmp_path, stock=0)
    first = layers.take(wanted)
    _write(first)
    assert first.device is not None and SECRET[:64] in _content(first), "else this proves nothing"
    layers._stock = 1
    layers.discard(first)
    kept = _spare(layers)
    assert Path(kept.path).read_bytes() == bytes(SIZE)
    second = layers.take(wanted)
    third = _stocked(layers)  # it and the second are made at the same time: either may have the device
    assert [layer.device for layer in (second, third)].count(kept) == 1, "it is used again, once"
    for layer in (second, third):
        for part in PARTS:
            upper = os.open(f"{part}/upper", os.O_RDONLY, dir_fd=layer.fd)
            with opened(upper), os.scandir(upper) as entries:
                assert list(entries) == []
    layers.discard(second)
    layers.close()


def test_a_device_that_somebody_has_mounted_is_never_scrubbed_nor_kept(
    layers: Layers, wanted: LimitValues
) -> None:
    layer = layers.take(wanted)
    _write(layer)
    assert layer.device is not None
    assert layer.device.hold()
    assert not layer.device.scrub()
    layer.device.let_go()
    holder = os.dup(layer.fd)
    layers._drop(layer)
    assert not layers._spare
    with opened(holder), opened(os.open("workspace/upper/secret", os.O_RDONLY, dir_fd=holder)) as fd:
        assert os.pread(fd, 32, 0) == SECRET[:32]


def test_no_more_devices_are_kept_than_the_stock(layers: Layers, wanted: LimitValues) -> None:
    several = [layers.take(wanted) for _ in range(5)]
    for one in several:
        layers._drop(one)
    assert len(layers._spare) <= 1


def test_another_size_gets_a_device_of_its_own(layers: Layers, wanted: LimitValues) -> None:
    first = layers.take(wanted)
    layers._drop(first)
    other = Limits(memory_bytes=SIZE, disk_bytes=2 * SIZE)
    larger = layers.take(limits.compile(Policy(name="t", limits=other)))
    assert larger.device is not None and larger.device.size == 2 * SIZE
    assert larger.usage()[0] > SIZE
    assert all(one.size == 2 * SIZE for one in layers._spare)
    layers.discard(larger)
