"""Policy → limits as the kernel's cgroup files take them."""

from __future__ import annotations

from dataclasses import dataclass

from invigilator.profiles.policy import Policy

CPU_PERIOD_US = 100_000
"""The kernel's default period for a CPU quota (Documentation/admin-guide/cgroup-v2.rst, cpu.max)."""


@dataclass(frozen=True, slots=True)
class LimitValues:
    """The limits of one sandbox. They hold in `mode: observe` too: they protect the machine.

    `disk_in_memory`: the writable layer may be a tmpfs, since at disk ≤ memory/4 a full one means ENOSPC and
    not an out-of-memory kill.
    """

    memory_bytes: int
    cpu_quota_us: int
    cpu_period_us: int
    pids: int
    disk_bytes: int
    output_bytes: int
    ttl_s: float

    @property
    def disk_in_memory(self) -> bool:
        return self.disk_bytes <= self.memory_bytes // 4

    def v2(self) -> dict[str, str]:
        """cgroup v2 file → what to write."""
        return {
            "memory.max": str(self.memory_bytes),
            "memory.swap.max": "0",
            "memory.oom.group": "0",
            "cpu.max": f"{self.cpu_quota_us} {self.cpu_period_us}",
            "pids.max": str(self.pids),
        }

    def v1(self) -> dict[str, dict[str, str]]:
        """cgroup v1 controller → file → what to write, in this order (memsw may not be below memory)."""
        return {
            "memory": {
                "memory.limit_in_bytes": str(self.memory_bytes),
                "memory.memsw.limit_in_bytes": str(self.memory_bytes),
            },
            "cpu": {
                "cpu.cfs_period_us": str(self.cpu_period_us),
                "cpu.cfs_quota_us": str(self.cpu_quota_us),
            },
            "pids": {"pids.max": str(self.pids)},
        }


def compile(policy: Policy) -> LimitValues:
    """The limits of a policy."""
    limits = policy.limits
    return LimitValues(
        memory_bytes=limits.memory_bytes,
        cpu_quota_us=round(limits.cpus * CPU_PERIOD_US),
        cpu_period_us=CPU_PERIOD_US,
        pids=limits.pids,
        disk_bytes=limits.disk_bytes,
        output_bytes=limits.output_bytes,
        ttl_s=limits.ttl_s,
    )
