"""Where the cgroups of others' containers are: by runtime, cgroup driver and hierarchy; pure functions.

A *place* is a cgroup's path from its hierarchy's root, as the last field of /proc/PID/cgroup has it. Runtimes
give a container the same place in every hierarchy that they use, v2's too where v1 has the controllers.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

Driver = Literal["cgroupfs", "systemd"]
DEFAULT_PARENTS: Mapping[Driver, str] = {"cgroupfs": "/docker", "systemd": "system.slice"}
"""Docker's, where neither the daemon nor the container names one (moby, daemon/oci_linux.go)."""

USUAL = (
    "/docker/",
    "/system.slice/docker-*.scope",
    "/default/",
    "/moby/",
    "/k8s.io/",
    "/system.slice/cri-containerd-*.scope",
    "/system.slice/nerdctl-*.scope",
    "/libpod_parent/",
    "/machine.slice/libpod-*.scope",
    "/user.slice/user-*.slice/user@*.service/user.slice/libpod-*.scope",
    "/kubepods/",
    "/kubepods.slice/",
)
"""Where the containers of Docker, containerd (its namespaces), nerdctl, Podman and Kubernetes are. One that
ends in a slash is a parent: what is below it may be watched; another, that cgroup and what is below it."""


class PlaceError(ValueError):
    """Text that names no cgroup; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where a hierarchy is mounted, and whether it is v2."""

    mount: str
    v2: bool


def docker_place(container: str, driver: Driver, parent: str = "") -> str:
    """Of a container of Docker's, by its whole id. `parent`: the container's `CgroupParent`, or else the
    daemon's --cgroup-parent; empty: the driver's default."""
    parent = parent or DEFAULT_PARENTS[driver]
    if driver == "systemd":
        return f"{slice_place(parent)}/docker-{container}.scope".replace("//", "/")
    if not parent.startswith("/"):
        raise PlaceError(
            f"the cgroup parent {parent!r} is relative to wherever Docker's daemon is: give it from the root"
        )
    return posixpath.normpath(posixpath.join(parent, container))


def slice_place(name: str) -> str:
    """Of a slice of systemd's: `a-b.slice` is below `a.slice` (systemd.slice(5)); `-.slice` is the root."""
    if name == "-.slice":
        return "/"
    stem = name.removesuffix(".slice")
    if stem == name or "/" in name or not all(stem.split("-")):
        raise PlaceError(
            f"{name!r} is no slice: the systemd driver's cgroup parents are named like a-b.slice"
        )
    parts = stem.split("-")
    return "".join(f"/{'-'.join(parts[: n + 1])}.slice" for n in range(len(parts)))


def place_of(path: str, hierarchies: Sequence[Hierarchy]) -> str:
    """The place that a path names: one below where a hierarchy is mounted, or a place already."""
    if not path.startswith("/"):
        raise PlaceError(f"{path!r} is no absolute path: give it as /proc/PID/cgroup has it, or in full")
    if ".." in PurePosixPath(path).parts:
        raise PlaceError(f"{path!r} goes up by `..`: name the cgroup itself")
    plain = posixpath.normpath(path).replace("//", "/")
    below = [one.mount for one in hierarchies if plain == one.mount or plain.startswith(f"{one.mount}/")]
    mount = max(below, key=len, default="")
    return plain.removeprefix(mount) or "/"


def folder_of(place: str, hierarchies: Sequence[Hierarchy]) -> str:
    """The folder of a place in the v2 hierarchy, by which the sensor knows cgroups."""
    for one in hierarchies:
        if one.v2:
            return f"{one.mount}{place}" if place != "/" else one.mount
    raise PlaceError("no cgroup v2 hierarchy is mounted")


def place_in(cgroup_file: str) -> str | None:
    """A process's place in v2, by its /proc/PID/cgroup; None where the file names none."""
    for line in cgroup_file.splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def hierarchies(mountinfo: str) -> list[Hierarchy]:
    """The hierarchies that a /proc/PID/mountinfo shows whole."""
    found = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        kind = rest.split(" ", 1)[0]
        root, mount = fields.split()[3:5]
        if kind in ("cgroup", "cgroup2") and root == "/":
            found.append(Hierarchy(mount.replace("\\040", " "), kind == "cgroup2"))
    return found


def is_allowed(place: str, allowed: Iterable[str]) -> bool:
    """Whether a cgroup may be watched under entries like `USUAL`. `*` stands for any part of one name."""
    names = place.strip("/").split("/")
    return any(_fits(names, entry) for entry in allowed)


def entries(text: str) -> list[str]:
    """A node's own list: an entry a line, `#` begins a comment; PlaceError names the line that is none."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        if not entry.startswith("/") or not entry.strip("/*") or ".." in entry.split("/"):
            raise PlaceError(f"line {number}: {entry!r} is no cgroup's path from the hierarchy's root")
        found.append(entry)
    return found


def _fits(names: Sequence[str], entry: str) -> bool:
    patterns = entry.strip("/").split("/")
    least = len(patterns) + entry.endswith("/")
    if len(names) < least:
        return False
    return all(fnmatch.fnmatchcase(name, pattern) for name, pattern in zip(names, patterns, strict=False))
