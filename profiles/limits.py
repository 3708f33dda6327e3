"""Policy → limits as the kernel's cgroup files take them."""

from __future__ import annotations

from dataclasses import dataclass

from invigilator.profiles.policy import Policy

CPU_PERIOD_US = 100_000
"""The kernel's default period for a CPU quota (Documentation/admin-guide/cgroup-v2.rst, cpu.max)."""


@dataclass(frozen=True, slots=True)
class IoValues:
    """Limits of each disk a second: bytes and operations; None: no limit."""

    read_bytes_per_s: int | None = None
    write_bytes_per_s: int | None = None
    read_ops_per_s: int | None = None
    write_ops_per_s: int | None = None

    def __bool__(self) -> bool:
        return self != IoValues()

    def v2(self, device: str) -> str:
        """The line of io.max that limits a device (`MAJOR:MINOR`), what is not limited included."""
        words = zip(("rbps", "wbps", "riops", "wiops"), self._values, strict=True)
        return f"{device} " + " ".join(f"{word}={'max' if value is None else value}" for word, value in words)

    def v1(self, device: str) -> dict[str, str]:
        """File of the v1 controller blkio → the line that limits a device; 0 is no limit
        (Documentation/admin-guide/cgroup-v1/blkio-controller.rst)."""
        words = zip(("read_bps", "write_bps", "read_iops", "write_iops"), self._values, strict=True)
        return {f"blkio.throttle.{word}_device": f"{device} {value or 0}" for word, value in words}

    @property
    def _values(self) -> tuple[int | None, int | None, int | None, int | None]:
        return (self.read_bytes_per_s, self.write_bytes_per_s, self.read_ops_per_s, self.write_ops_per_s)


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
    io: IoValues = IoValues()

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
        io=IoValues(**limits.io.model_dump()),
    )
