"""The cgroup hierarchies of this machine: where this process is in them, and what each can limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from invigilator.sandbox.base import UnavailableError

CONTROLLERS = ("memory", "pids", "cpu")
"""What every sandbox is limited by."""
DISKS_V1, DISKS_V2 = "blkio", "io"
"""What limits disks, where a policy does, is called."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where this process's cgroups are. `v1`: controller → folder; `v2_controllers`: those that v2 has."""

    v2: Path
    v2_root: Path
    v2_controllers: frozenset[str]
    v1: Mapping[str, Path]

    @classmethod
    def find(cls) -> Hierarchies:
        """Read from /proc; `UnavailableError` without a v2 hierarchy."""
        own = _own_cgroups()
        v2_mount, v1_mounts = _mounts()
        if v2_mount is None:
            raise UnavailableError("no cgroup v2 hierarchy: mount -t cgroup2 none /sys/fs/cgroup/unified")
        controllers = frozenset((v2_mount / "cgroup.controllers").read_text().split())
        v1 = {name: _below(mount, own.get(name, "/")) for name, mount in v1_mounts.items()}
        return cls(_below(v2_mount, own.get("", "/")), v2_mount, controllers, v1)

    @property
    def missing(self) -> tuple[str, ...]:
        """Controllers that neither hierarchy has."""
        return tuple(name for name in CONTROLLERS if name not in self.v1 and name not in self.v2_controllers)

    @property
    def limits_in_v2(self) -> bool:
        """Whether v2 carries the limits."""
        disks = self.disks == DISKS_V2
        return disks or any(name in self.v2_controllers for name in CONTROLLERS if name not in self.v1)

    @property
    def disks(self) -> str | None:
        """The controller that limits disks, by its name in the version that has it; None where none has."""
        if DISKS_V1 in self.v1:
            return DISKS_V1
        return DISKS_V2 if DISKS_V2 in self.v2_controllers else None


def _own_cgroups() -> dict[str, str]:
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    return own


def _mounts() -> tuple[Path | None, dict[str, Path]]:
    v2: Path | None = None
    v1: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(fields.split()[4].replace("\\040", " "))
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup2":
            v2 = point
        elif kind == "cgroup":
            v1.update({name: point for name in options.split(",") if name in (*CONTROLLERS, DISKS_V1)})
    return v2, v1


def _below(mount: Path, path: str) -> Path:
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount
