"""Control groups: where they are, which limits they give, and one of our own to try things on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from invigilator.guard.probes.finding import Finding, State

CONTROLLERS = {"memory": "memory", "pids": "pids", "cpu": "cpu", "io": "blkio"}
"""Name in v2 → name in v1."""
NEED_ROOT = "run as root"


def v2_root() -> Path | None:
    """Where the v2 hierarchy is mounted, or None."""
    return next((Path(point) for point, kind, _ in mounts() if kind == "cgroup2"), None)


def mounts() -> Iterator[tuple[str, str, str]]:
    """(mount point, file system type, options) of every mount of this process."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split(" ")
        yield point, kind, options


def own(root: Path | None) -> tuple[Path | None, str, str]:
    """A new cgroup below `root`, the caller's to remove; or None, why not, and what to do."""
    if root is None:
        return None, "no cgroup v2 hierarchy is mounted", "mount -t cgroup2 none /sys/fs/cgroup/unified"
    try:
        return Path(tempfile.mkdtemp(prefix="invigilator-probe-", dir=root)), "", ""
    except OSError as error:
        return None, f"no cgroup can be made in {root}: {error.strerror}", NEED_ROOT


def findings() -> Iterator[Finding]:
    """Each controller that a limit needs, v1 or v2, and the v2 hierarchy's own powers."""
    root = v2_root()
    v2 = set((root / "cgroup.controllers").read_text().split()) if root else set()
    v1 = {name: point for point, kind, options in mounts() if kind == "cgroup" for name in options.split(",")}
    for controller, older in CONTROLLERS.items():
        folder = root if controller in v2 and root else Path(v1.get(older, ""))
        where = f"v2 at {root}" if controller in v2 else f"v1 at {v1[older]}" if older in v1 else ""
        writable = bool(where) and os.access(folder, os.W_OK)
        state: State = "yes" if writable else "partly" if where else "no"
        detail = (where if writable else f"{where}, not writable for this user") if where else "not mounted"
        fix = "" if writable else "run as root" if where else f"boot with the {controller} controller enabled"
        yield Finding("limits", f"{controller} controller", state, detail, f"the {controller} limit", fix)
    yield kill(root)


def kill(root: Path | None) -> Finding:
    """Whether a cgroup can be ended in one step (Linux 5.14)."""
    folder, why, fix = own(root)
    gives = "ending a sandbox in one step"
    if folder is None:
        return Finding("limits", "cgroup.kill", "unknown", why, gives, fix)
    present = (folder / "cgroup.kill").exists()
    folder.rmdir()
    if present:
        return Finding("limits", "cgroup.kill", "yes", "present", gives)
    return Finding("limits", "cgroup.kill", "no", "not in this kernel", gives, "kernel ≥ 5.14")
