"""What this machine's kernel lets a sensor do, hook by hook, found by trying (`guard doctor`)."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .build import BuildError, object_file
from .loader import Kernel, LoadError, kernel_has

BTF = Path("/sys/kernel/btf/vmlinux")


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing tried. `tier`: what of the sensor needs it (`base`: without it there is no sensor; `network`:
    refusing connections; `upper`: more than the base tier, not needed). `reason` and `remedy` are empty where
    `works`; `remedy` says what to install or set."""

    name: str
    tier: str
    works: bool
    reason: str = ""
    remedy: str = ""


_CGROUP = "mount -t cgroup2 none /sys/fs/cgroup/unified, and a kernel with CONFIG_CGROUP_BPF=y"
_HOOKS = {
    "tp_btf": ("base", "a kernel of 5.5 or later with CONFIG_DEBUG_INFO_BTF=y and CONFIG_FTRACE_SYSCALLS=y"),
    "ringbuf": ("base", "a kernel of 5.8 or later"),
    "control": ("base", "a kernel of 5.14 or later"),
    "cgroup_connect": ("network", _CGROUP),
    "cgroup_skb": ("network", _CGROUP),
    "tracepoint": ("upper", "a kernel with CONFIG_FTRACE_SYSCALLS=y, tracefs, and perf events allowed"),
    "lsm": ("upper", "boot with lsm=…,bpf and a kernel with CONFIG_BPF_LSM=y and trampolines allowed"),
    "fentry": ("upper", "a kernel with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y and trampolines allowed"),
    "kprobe": ("upper", "a kernel with CONFIG_KPROBES=y"),
}


def probe() -> list[Probe]:
    """Try everything; nothing is left attached. Never raises: what is missing is in the answer."""
    found = [_root(), _btf()]
    try:
        built = object_file("probe")
        found.append(Probe("compiler", "base", True))
    except (BuildError, OSError) as failure:
        remedy = "apt-get install clang libbpf-dev libbpf1"
        return [*found, Probe("compiler", "base", False, _short(failure), remedy)]
    found += [_hook(built, name, *needs) for name, needs in _HOOKS.items()]
    direct = _direct_reads()
    return [*found, Probe("direct_reads", "upper", *direct)]


def _root() -> Probe:
    if os.geteuid() == 0:
        return Probe("root", "base", True)
    return Probe("root", "base", False, f"uid {os.geteuid()}", "run as root")


def _btf() -> Probe:
    if BTF.exists():
        return Probe("btf", "base", True)
    return Probe("btf", "base", False, f"{BTF} is missing", "a kernel with CONFIG_DEBUG_INFO_BTF=y")


def _hook(built: Path, name: str, tier: str, remedy: str) -> Probe:
    try:
        kernel = Kernel(built)
    except LoadError as failure:
        return Probe(name, tier, False, _short(failure), "apt-get install libbpf1")
    try:
        kernel.only(name)
        kernel.load()
        if name.startswith("cgroup"):
            _attach_to_cgroup(kernel, name)
        elif name != "control":
            kernel.attach(name)
    except (LoadError, OSError) as failure:
        return Probe(name, tier, False, _short(failure), remedy)
    finally:
        kernel.close()
    return Probe(name, tier, True)


def _attach_to_cgroup(kernel: Kernel, name: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="invigilator-probe-", dir=_unified()))
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            kernel.detach(kernel.attach_cgroup(name, fd))
        finally:
            os.close(fd)
    finally:
        folder.rmdir()


def _unified() -> Path:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, sort, *_ = line.split()
        if sort == "cgroup2":
            return Path(where)
    raise FileNotFoundError("no cgroup v2 hierarchy is mounted")


def _direct_reads() -> tuple[bool, str, str]:
    try:
        if kernel_has("bpf_rdonly_cast"):
            return True, "", ""
    except LoadError as failure:
        return False, _short(failure), "apt-get install libbpf1"
    return False, "the kernel has no bpf_rdonly_cast", "a kernel of 6.2 or later makes the sensor cheaper"


def _short(failure: BaseException) -> str:
    return str(failure).splitlines()[0][:300]
