"""Containers that others start with Docker, found by name or label as early as can be, and their cgroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from invigilator.sandbox import places
from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.engine import SANDBOX_LABEL, connected, telling


@dataclass(frozen=True, slots=True)
class Found:
    """A container. `place`: of its cgroup, known or, before it runs, foretold. `early`: it does not run, and
    its cgroup may be made before its runtime does: that takes what is there (cgroupfs; systemd does not)."""

    id: str
    name: str
    image: str
    labels: Mapping[str, str]
    place: str
    running: bool
    early: bool


class Containers:
    """Of the daemon that `DOCKER_HOST` names, or this machine's."""

    def __init__(self, parent: str = "") -> None:
        """`parent`: the daemon's --cgroup-parent, which it does not tell."""
        self._api = connected()
        self._parent = parent
        with telling("tell of itself"):
            self._driver: places.Driver = self._api.info()["CgroupDriver"]

    def find(self, name: str) -> Found:
        """By name, or by the beginning of an id. `SandboxError` where there is none, or it has ended."""
        from docker.errors import NotFound

        try:
            with telling(f"inspect the container {name}", absence=True):
                told = self._api.inspect_container(name)
        except NotFound:
            raise SandboxError(f"Docker has no container {name!r}: `docker ps -a` lists them") from None
        return found_in(told, self._driver, self._parent)

    def labelled(self, labels: Sequence[str]) -> list[Found]:
        """Those that have all labels (`K` or `K=V`), and run or have not yet."""
        with telling("list containers"):
            filters = {"label": list(labels), "status": ["created", "running", "paused"]}
            listed = self._api.containers(all=True, filters=filters)
        return [one for told in listed if (one := self.again(told["Id"])) is not None]

    def again(self, container: str) -> Found | None:
        """A container that an event or a list told of; None where it is gone, or the guard's own."""
        try:
            one = self.find(container)
        except SandboxError:
            return None
        return None if SANDBOX_LABEL in one.labels else one

    def events(self, labels: Sequence[str]) -> Iterator[str]:
        """Ids of containers with these labels as they are created and as they start; without end."""
        filters = {"type": "container", "event": ["create", "start"], "label": list(labels)}
        with telling("tell of its events"):
            for event in self._api.events(decode=True, filters=filters):
                yield str(event["id"])


def found_in(told: Mapping[str, Any], driver: places.Driver, parent: str) -> Found:
    """A container as the daemon's inspection tells of it."""
    state, config = told["State"], told.get("Config") or {}
    running = bool(state.get("Running"))
    own = (told.get("HostConfig") or {}).get("CgroupParent") or parent
    try:
        place = _place_of(int(state["Pid"])) if running else places.docker_place(told["Id"], driver, own)
    except places.PlaceError as error:
        raise SandboxError(str(error)) from None
    return Found(
        id=told["Id"],
        name=str(told["Name"]).lstrip("/"),
        image=str(config.get("Image") or ""),
        labels=dict(config.get("Labels") or {}),
        place=place,
        running=running,
        early=not running and driver == "cgroupfs",
    )


def _place_of(pid: int) -> str:
    try:
        place = places.place_in(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        raise SandboxError(
            "the container's process is none of this machine's: it has just ended, or Docker's daemon runs"
            " elsewhere"
        ) from None
    if place is None:
        raise SandboxError("no cgroup v2 hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup/unified")
    return place
