"""What the process backend finds on this machine: each need tried, why it fails, what to install."""

from __future__ import annotations

import ctypes
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from invigilator.profiles import limits
from invigilator.profiles.policy import Limits, Policy
from invigilator.sandbox import build
from invigilator.sandbox.base import SandboxError, SandboxSpec, Streams
from invigilator.sandbox.hierarchies import Hierarchies
from invigilator.sandbox.layer import Layers
from invigilator.sandbox.process import ProcessBackend

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """`works`: whether the need is met. `detail`: what was seen, or the error. `fix`: what to do about it."""

    name: str
    works: bool
    detail: str
    gives: str
    fix: str = ""


def examine(home: Path) -> list[Finding]:
    """Try everything with a state folder; takes seconds where a root template has to be made."""
    if os.geteuid() != 0:
        return [Finding("root", False, "not root", "sandboxes", "run it as root")]
    needs: list[tuple[str, Callable[[Path], str], str, str]] = [
        ("launcher", _launcher, "starting sandboxes", "apt-get install gcc libc6-dev"),
        (
            "cgroups",
            _cgroups,
            "limits, and which phase a process is in",
            "mount cgroup2; enable its controllers",
        ),
        ("disk layer", _layer, "a disk limit that means ENOSPC", "apt-get install e2fsprogs; modprobe loop"),
        ("links", _links, "policies with egress", "apt-get install nftables"),
        (
            "sandbox",
            _sandbox,
            "guarded rollouts",
            "see the error; Linux 5.19 or newer, state on ext4, xfs or btrfs",
        ),
    ]
    return [_try(home, *need) for need in needs]


def _try(home: Path, name: str, attempt: Callable[[Path], str], gives: str, fix: str) -> Finding:
    try:
        return Finding(name, True, attempt(home), gives)
    except (OSError, SandboxError) as error:
        return Finding(name, False, str(error), gives, fix)


def _launcher(home: Path) -> str:
    return f"{build.launcher(home / 'roots').stat().st_size >> 10} KiB, compiled by {shutil.which('gcc')}"


def _cgroups(_: Path) -> str:
    found = Hierarchies.find()
    if found.missing:
        raise SandboxError(f"no cgroup controller for {', '.join(found.missing)}")
    return f"v1 for {', '.join(found.v1)}" if found.v1 else "v2"


def _layer(home: Path) -> str:
    values = limits.compile(Policy(name="probe", limits=Limits(memory_bytes=64 * MIB, disk_bytes=64 * MIB)))
    layers = Layers(home / "sandboxes", stock=0)
    try:
        layers.take(values).close()
    finally:
        layers.close()
    free = shutil.disk_usage(home).free
    return f"loop device and ext4; {free >> 30} GiB free for all sandboxes together"


def _links(_: Path) -> str:
    ctypes.CDLL("libnftables.so.1")
    if not Path("/proc/sys/net/ipv4").is_dir():
        raise SandboxError("no IPv4")
    return "veth and nftables"


def _sandbox(home: Path) -> str:
    backend = ProcessBackend(home, stock=0)
    try:
        return _run_true(backend)
    finally:
        backend.close()


def _run_true(backend: ProcessBackend) -> str:
    policy = Policy(name="probe", limits=Limits(memory_bytes=256 * MIB, disk_bytes=16 * MIB))
    box = backend.prepare(SandboxSpec(uuid.uuid4(), policy))
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        box.start()
        status = box.execute(["true"], phase="agent", streams=Streams(null, null, null)).wait(20)
        if status.code != 0:
            raise SandboxError(f"`true` ended with {status.code}")
        return f"made, used and removed; {', '.join(_in_force(box.enforcement()))} in force"
    finally:
        os.close(null)
        box.remove()


def _in_force(tiers: Mapping[str, str]) -> list[str]:
    return [name for name, state in tiers.items() if state == "enforce"]
