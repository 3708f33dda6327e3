"""What is in a sandbox's files beside what it began with: canaries, and what became of it all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from invigilator.sandbox import changes, planting, workspace
from invigilator.sandbox.base import Change, SandboxSpec
from invigilator.sandbox.layer import Layer
from invigilator.sandbox.root import Lower
from invigilator.sandbox.vault import is_kept


class Content:
    """That of one sandbox. `root`: a descriptor of its root folder; `first_id`: host id of its root user."""

    def __init__(
        self, spec: SandboxSpec, layer: Layer, root: int, lowers: Sequence[Lower], first_id: int
    ) -> None:
        """Plant the canaries; what is there now is what it begins with."""
        self._spec, self._layer = spec, layer
        self._lowers, self._first_id = lowers, first_id
        for canary in spec.canaries:
            planting.plant(root, canary, first_id)
        self._baseline = changes.snapshot(layer.fd, lowers)

    def changes(self, root: int, under: Sequence[str], made: Set[bytes]) -> Iterator[Change]:
        """Differences at or below paths of the sandbox, but for what the guard `made`."""
        walk = changes.Walk(root, self._first_id, self._baseline)
        owner = (self._spec.owner_uid, self._spec.owner_gid) if self._spec.owner_uid else None
        found = changes.differences(self._layer.fd, walk, self._lowers, under, owner)
        return (
            one for one in found if not is_kept(one.path) and (one.change != "added" or one.path not in made)
        )

    def copy_back(self, root: int, lower: Lower) -> Sequence[str]:
        """Bring the workspace's changes to its folder: what was left behind, each with the reason."""
        return workspace.copy_back(
            self._layer.fd, root, lower, self._spec.owner_uid, self._spec.owner_gid, self._baseline
        )
