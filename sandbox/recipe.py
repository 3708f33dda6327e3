"""The operations that make a sandbox, in order; `launcher/mounts.c` carries them out as its init."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from invigilator.sandbox.ids import COUNT
from invigilator.sandbox.kernel import (
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
)
from invigilator.sandbox.root import Lower
from invigilator.sandbox.spec import Id, Op, Slot, Specification, Word

OVERLAY_OPTIONS = "redirect_dir=on,metacopy=off,index=off,xino=auto"
"""redirect_dir: renaming a folder works as without the guard. No metacopy: the upper layer is complete."""

TTY_GROUP = 5
OWNER = Id()
"""Of what the sandbox's root owns."""
_OWNED = ("uid=", OWNER, ",gid=", OWNER)
QUIET = MS_NOSUID | MS_NODEV | MS_NOEXEC
READ_ONLY = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC

DEVICES = (
    ("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0),
)  # fmt: skip
DEVICE_LINKS = (
    ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx"),
)  # fmt: skip
PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs")
PROC_MASKED = (
    "acpi", "asound", "cmdline", "config.gz", "consoles", "diskstats", "driver", "interrupts", "iomem",
    "ioports", "kallsyms",
    "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats",
    "modules", "partitions", "sched_debug", "scsi", "slabinfo", "softirqs", "swaps", "timer_list",
    "timer_stats", "vmallocinfo",
)  # fmt: skip
"""What tells of the host, or crashes kernels when read (kpagecgroup). Of these, what only the host's root may
open needs no cover: the sandbox has no such user."""
SYS_SHOWN = ("devices/system/cpu", "devices/system/node")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a sandbox is made of, whatever its ids. `workspace_maps`: uid and gid maps for the workspace,
    where they differ from the sandbox's. `split`: the agent's phases need a mount namespace of their own."""

    stage: Path
    lowers: tuple[Lower, ...]
    workspace: Lower | None
    workspace_point: str
    workspace_maps: tuple[Word, Word] | None
    folders: tuple[str, ...]
    nested_users: bool
    split: bool
    shm_bytes: int
    hostname: str

    def specification(self, first_id: int) -> Specification:
        """The operations that make it."""
        return _form(self).filled(first_id)

    def form(self) -> Specification:
        """The operations, with blanks for the ids."""
        spec = Specification()
        self._stage(spec)
        for lower in self.lowers:
            target = "root" + lower.mount_point.rstrip("/")
            overlay(spec, lower, target, Slot.USER)
        self._workspace(spec)
        self._shown_of_sys(spec)
        spec.add(Op.PIVOT, "root")
        self._proc(spec)
        self._dev(spec)
        self._sys(spec)
        for path in (*self.folders, self.workspace_point):
            self._folders(spec, path)
        spec.place(Slot.TREE, self.workspace_point)
        spec.add(Op.HOSTNAME, self.hostname)
        spec.add(Op.OPEN, Slot.ROOT, "/")
        spec.add(Op.OPEN, Slot.PTS, "/dev/pts")
        if self.split:
            spec.add(Op.SPLIT)
        return spec

    def _stage(self, spec: Specification) -> None:
        whole = ("0 ", OWNER, f" {COUNT}")
        spec.add(Op.STAGE, str(self.stage))
        for name in ("proc", "layer", "root", "workspace"):
            spec.folder(name, 0o700)
        spec.mount("proc", "proc", "proc", QUIET)
        limit = "-1" if self.nested_users else "0"
        spec.add(Op.USERNS, Slot.USER, whole, whole, 1, limit)
        if self.workspace_maps:
            spec.add(Op.USERNS, Slot.WORKSPACE_USER, *self.workspace_maps, 0, "-1")
        spec.add(Op.ATTACH, 3, "layer")

    def _workspace(self, spec: Specification) -> None:
        """Made before the pivot, placed after it, so that no link in the root leads it astray."""
        mapping = Slot.WORKSPACE_USER if self.workspace_maps else Slot.USER
        overlay(spec, self.workspace or Lower("workspace", "", ()), "workspace", mapping)
        spec.tree(Slot.TREE, "workspace")

    def _shown_of_sys(self, spec: Specification) -> None:
        for number, path in enumerate(SYS_SHOWN, 1):
            if Path("/sys", path).is_dir():
                spec.tree(Slot.TREE + number, f"/sys/{path}", READ_ONLY)

    def _proc(self, spec: Specification) -> None:
        spec.folder("/proc", 0o555, OWNER)
        spec.mount("proc", "proc", "/proc", QUIET)
        for name in PROC_READ_ONLY:
            if Path("/proc", name).exists():
                spec.tree(Slot.TREE + 5, f"/proc/{name}", READ_ONLY)
                spec.place(Slot.TREE + 5, f"/proc/{name}")

    def _dev(self, spec: Specification) -> None:
        owner = OWNER
        spec.folder("/dev", 0o755, owner)
        spec.mount(
            "tmpfs", "tmpfs", "/dev", MS_NOSUID | MS_NOEXEC, ("mode=755,size=64k,nr_inodes=1k,", *_OWNED)
        )
        for name, major, minor in DEVICES:
            spec.add(Op.NODE, f"/dev/{name}", 0o020666, major, minor, owner, owner)
        for name, target in DEVICE_LINKS:
            spec.add(Op.SYMLINK, target, f"/dev/{name}")
        for name in ("pts", "shm", "mqueue"):
            spec.folder(f"/dev/{name}", 0o755, owner)
        options = ("newinstance,ptmxmode=0666,mode=0620,gid=", Id(TTY_GROUP))
        spec.mount("devpts", "devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, options)
        shm = (f"mode=1777,size={self.shm_bytes},nr_inodes={max(self.shm_bytes >> 12, 1024)},", *_OWNED)
        spec.mount("tmpfs", "tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, shm)
        spec.mount("mqueue", "mqueue", "/dev/mqueue", QUIET)
        self._mask_proc(spec)

    def _mask_proc(self, spec: Specification) -> None:
        files, folders = _to_mask()
        for name in files:
            spec.tree(Slot.TREE + 5, "/dev/null", MOUNT_ATTR_NOSUID)
            spec.place(Slot.TREE + 5, f"/proc/{name}")
        for name in folders:
            flags = MS_RDONLY | QUIET
            spec.mount("tmpfs", "tmpfs", f"/proc/{name}", flags, "size=4k,nr_inodes=1,mode=555")

    def _sys(self, spec: Specification) -> None:
        """Not sysfs, which describes the host, but the two folders that language runtimes ask for."""
        owner = OWNER
        spec.folder("/sys", 0o555, owner)
        spec.mount("tmpfs", "tmpfs", "/sys", QUIET, ("mode=755,size=64k,", *_OWNED))
        for number, path in enumerate(SYS_SHOWN, 1):
            if Path("/sys", path).is_dir():
                self._folders(spec, f"/sys/{path}")
                spec.place(Slot.TREE + number, f"/sys/{path}")
        spec.mount("", "", "/sys", MS_RDONLY | QUIET | _MS_REMOUNT | _MS_BIND)

    def _folders(self, spec: Specification, path: str) -> None:
        for parent in reversed(PurePosixPath(path).parents):
            if str(parent) != "/":
                spec.folder(str(parent), 0o755, OWNER)
        spec.folder(path, 0o755, OWNER)


_MS_REMOUNT, _MS_BIND = 32, 4096


@functools.lru_cache(maxsize=256)
def _form(recipe: Recipe) -> Specification:
    return recipe.form()


@functools.cache
def _to_mask() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(files, folders) of /proc on this machine that "other" could read and must not."""
    files: list[str] = []
    folders: list[str] = []
    for name in PROC_MASKED:
        with contextlib.suppress(OSError):
            mode = Path("/proc", name).stat().st_mode
            if mode & 0o004:
                (folders if stat.S_ISDIR(mode) else files).append(name)
    return tuple(files), tuple(folders)


def overlay(spec: Specification, lower: Lower, target: str, mapping: int) -> None:
    """An overlay of one part of the layer, which is in folder `layer`, mounted at `target`. `mapping`: slot
    of the user namespace that maps the ids of its lower folders."""
    layers = []
    for number, folder in enumerate(lower.folders):
        name = f"{lower.part}{number}"
        spec.folder(name, 0o700)
        spec.tree(Slot.TREE, str(folder), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV, mapping)
        spec.place(Slot.TREE, name)
        layers.append(name)
    if not layers:
        spec.folder("empty", 0o755, OWNER)
        layers = ["empty"]
    upper = f"upperdir=layer/{lower.part}/upper,workdir=layer/{lower.part}/work"
    data = f"lowerdir={':'.join(layers)},{upper},{OVERLAY_OPTIONS}"
    spec.mount("overlay", "overlay", target, MS_NODEV, data)


def workspace_maps(owner_uid: int, owner_gid: int) -> tuple[Word, Word] | None:
    """Maps that make the invoking user's files the sandbox root's, and no others; None for root.

    Other people's files in the workspace keep an owner that the sandbox does not have, so that its root has
    no more right to them than the invoking user had.
    """
    if owner_uid == 0:
        return None
    return (f"{owner_uid} ", OWNER, " 1"), (f"{owner_gid} ", OWNER, " 1")


def environment(policy_environment: dict[str, str], workspace: str) -> dict[str, str]:
    """The variables that every command gets, under those of the caller."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/bash",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PWD": workspace,
        **policy_environment,
    }
