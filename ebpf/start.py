"""Starting the sensor: what it needs, the programs' settings, and which of them hang where."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .events import EVENT, Records
from .layout import ADOPTING, MAX_SLOTS, SLOT
from .loader import BTF_KIND_TYPEDEF, Kernel, check_layout, kernel_has
from .names import find_table

TRACING = (
    "dispatch",
    "on_fork",
    "on_exec",
    "on_exit",
    "on_attach",
    "on_cgroup_mkdir",
    "on_cgroup_rmdir",
    "on_sock_state",
    "on_signal",
)
WHERE_FOUND = {"on_submit": "io_uring_submit_req"}
"""Tracing programs that do without their tracepoint where the kernel has none of that name: before 6.3
io_uring had another."""
FILTERS = (
    "filter_connect4",
    "filter_connect6",
    "filter_sendmsg4",
    "filter_sendmsg6",
    "filter_socket",
    "filter_egress",
    "filter_bind4",
    "filter_bind6",
)


class SensorUnavailable(Exception):
    """This machine cannot run the sensor; the message says what is missing."""


def require() -> None:
    if os.geteuid() != 0:
        raise SensorUnavailable("the sensor needs root (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN)")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        raise SensorUnavailable("this kernel has no BTF: it needs CONFIG_DEBUG_INFO_BTF=y")


def prepare(kernel: Kernel, sizes: Mapping[str, int]) -> None:
    check_layout(kernel, "event", EVENT)
    check_layout(kernel, "slot", SLOT)
    check_layout(kernel, "adopting", ADOPTING)
    for name, size in sizes.items():
        if size & (size - 1) or size < 4096:
            raise SensorUnavailable(f"ring {name}: {size} bytes is not a power of two of at least 4096")
        kernel.size_map(name, size)
    key = secrets.token_bytes(16)
    kernel.set_constants(
        {
            "sensor_tgid": os.getpid(),
            "bulk_size": sizes["bulk"],
            "precious_size": sizes["precious"],
            "string_size": sizes["strings"],
            "hash_key": [int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")],
            "direct_reads": int(kernel_has("bpf_rdonly_cast")),
        }
    )
    found = [p for p, point in WHERE_FOUND.items() if kernel_has(f"btf_trace_{point}", BTF_KIND_TYPEDEF)]
    for program in WHERE_FOUND.keys() - set(found):
        kernel.leave_out(program)
    kernel.load()
    table, shift = find_table(kernel)
    kernel.variable(".bss", "name_table", np.uint64)[0] = table
    kernel.variable(".bss", "name_shift", np.uint32)[0] = shift
    for program in (*TRACING, *found):
        kernel.attach(program)


def map_slots(kernel: Kernel) -> Records:
    size = SLOT.itemsize * MAX_SLOTS
    memory = mmap.mmap(kernel.map_fd("slots"), (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE)
    return np.frombuffer(memory, SLOT, MAX_SLOTS)
