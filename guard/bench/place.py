"""Sandboxes and sensors for measuring, without an agent between: the parts themselves."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from invigilator.ebpf.build import object_file
from invigilator.ebpf.events import Actor, Phase
from invigilator.ebpf.loader import Kernel
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.pipeline import GATHER_S
from invigilator.profiles import library
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox.base import Sandbox, SandboxSpec, Streams
from invigilator.sandbox.process import ProcessBackend

PHASES: Mapping[PhaseName, Phase] = {"setup": Phase.SETUP, "agent": Phase.AGENT, "verify": Phase.VERIFY}
LOOPS_SOURCE = Path(__file__).with_name("loops.c")


@functools.cache
def policy() -> Policy:
    """The policy that figures are taken under; read once, as an agent is sent its policies ready."""
    return library.load("base")


def compile_loops(folder: Path) -> Path:
    """The loops program, built statically so that it runs under any root."""
    target = folder / "loops"
    subprocess.run(["gcc", "-O2", "-static", "-o", str(target), str(LOOPS_SOURCE)], check=True, timeout=60)
    return target


@contextlib.contextmanager
def floor() -> Iterator[None]:
    """An empty program on the sensor's hook."""
    kernel = Kernel(object_file("floor"))
    try:
        kernel.load()
        kernel.attach("floor_exit")
        yield
    finally:
        kernel.close()


@contextlib.contextmanager
def drained(sensor: Sensor) -> Iterator[None]:
    """A thread that takes events away while something is measured."""
    done = threading.Event()

    def take() -> None:
        while not done.is_set():
            sensor.drain(0.05, gather_s=GATHER_S)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def started(
    backend: ProcessBackend,
    sensor: Sensor | None = None,
    workspace: Path | None = None,
    rules: Policy | None = None,
) -> Iterator[Sandbox]:
    """A started sandbox, watched where there is a sensor; under the figures' policy where none is given."""
    identity = uuid.uuid4()
    box = backend.prepare(SandboxSpec(identity, rules or policy(), workspace=workspace))
    slot = None
    try:
        if sensor is not None:
            slot = sensor.register(identity, {number: PHASES[name] for name, number in box.cgroups().items()})
        box.start()
        if sensor is not None and slot is not None:
            sensor.set_mounts(slot, [(m.dev, m.fs_root, m.mount_point) for m in box.mounts()])
            sensor.arm(slot)
            sensor.set_step(slot, 0, Actor.AGENT)
        yield box
    finally:
        box.remove()
        if sensor is not None and slot is not None:
            sensor.unregister(slot)


def output_of(box: Sandbox, command: Sequence[str], timeout_s: float = 600.0) -> str:
    """Run a command in phase agent; its standard output. `RuntimeError` where it fails."""
    with open(os.memfd_create("output"), "w+b") as out, open(os.devnull, "rb") as empty:  # noqa: PTH123
        streams = Streams(empty.fileno(), out.fileno(), out.fileno())
        status = box.execute(command, phase="agent", streams=streams).wait(timeout_s)
        out.seek(0)
        text = out.read().decode(errors="replace")
    if status.code != 0:
        raise RuntimeError(f"{command[0]} ended with {status.code} ({status.reason}): {text[-500:]}")
    return text
