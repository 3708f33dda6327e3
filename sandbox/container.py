"""The container backend: sandboxes in containers of Docker Engine."""

from __future__ import annotations

import logging

from invigilator.sandbox.base import Backend, SandboxError, SandboxSpec
from invigilator.sandbox.container_instance import ContainerSandbox
from invigilator.sandbox.engine import Engine
from invigilator.sandbox.machinery import Machinery

_log = logging.getLogger("invigilator.container")


class ContainerBackend(Backend):
    """Shares launcher, cgroups, layers and links with the agent's process backend, which outlives it.

    Docker is asked nothing before the first container: an agent that makes none does not wait for it.
    """

    name = "container"

    def __init__(self, machinery: Machinery, engine: Engine | None = None) -> None:
        """`engine`: the daemon; that of the environment, where none is given."""
        self._shared = machinery
        self._engine = engine or Engine()
        self._used = machinery.home / "sandboxes" / ".containers"

    def prepare(self, spec: SandboxSpec) -> ContainerSandbox:
        """See the contract."""
        self._used.touch()
        return ContainerSandbox(spec, self._shared, self._engine)

    def sweep(self) -> int:
        """See the contract. Cgroups and links are swept by the process backend; containers of a daemon that
        is not there, the next time."""
        if not self._used.exists():
            return 0
        try:
            return self._engine.sweep(self._shared.home)
        except SandboxError as error:
            _log.warning("containers of dead agents are not looked for: %s", error)
            return 0

    def close(self) -> None:
        """Leave the daemon."""
        self._engine.close()
