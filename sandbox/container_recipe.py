"""What the launcher does in a container that has just started, before any command is in it.

The container's user ids are the machine's, so its root would be the host's. Commands get a user namespace
that has the same ids and owns nothing: no capability of theirs reaches beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from invigilator.sandbox.ids import COUNT
from invigilator.sandbox.recipe import QUIET, overlay
from invigilator.sandbox.root import Lower
from invigilator.sandbox.spec import NO_SLOT, Op, Slot, Specification

CONTAINER, LAYER = 2, 3
"""The request's descriptors: the container's mount namespace, and the guard's writable layer."""


@dataclass(frozen=True, slots=True)
class Furnishing:
    """What to put in. `workspace`: what is mounted at its mount point, None for nothing. `owner`: (uid, gid)
    on the host of what the sandbox's root shall own of it. `covered`: a mount that goes."""

    stage: Path
    workspace: Lower | None
    owner: tuple[int, int]
    folders: tuple[str, ...]
    covered: str
    nested_users: bool
    split: bool

    def specification(self) -> Specification:
        """The operations, in order."""
        spec = Specification()
        spec.add(Op.STAGE, str(self.stage))
        for name in ("proc", "layer", "workspace"):
            spec.folder(name, 0o700)
        spec.mount("proc", "proc", "proc", QUIET)
        everyone = f"0 0 {COUNT}"
        spec.add(Op.USERNS, Slot.USER, everyone, everyone, 0, "-1" if self.nested_users else "0")
        if self.workspace is not None:
            self._workspace(spec, self.workspace)
        spec.add(Op.JOIN, CONTAINER)
        spec.add(Op.DETACH, self.covered)
        for folder in self.folders:
            _folders(spec, folder)
        if self.workspace is not None:
            spec.place(Slot.TREE, self.workspace.mount_point)
        spec.add(Op.OPEN, Slot.ROOT, "/")
        spec.add(Op.OPEN, Slot.PTS, "/dev/pts")
        if self.split:
            spec.add(Op.SPLIT)
        return spec

    def _workspace(self, spec: Specification, workspace: Lower) -> None:
        mapping: int = NO_SLOT
        uid, gid = self.owner
        if uid:
            mapping = Slot.WORKSPACE_USER
            spec.add(Op.USERNS, mapping, f"{uid} 0 1", f"{gid} 0 1", 0, "-1")
        spec.add(Op.ATTACH, LAYER, "layer")
        overlay(spec, workspace, "workspace", mapping)
        spec.tree(Slot.TREE, "workspace")


def _folders(spec: Specification, path: str) -> None:
    """A folder and those on its way, where there are none: the root's, as all that is made anew."""
    walked = ""
    for name in path.strip("/").split("/"):
        walked += "/" + name
        spec.folder(walked)
