"""The kinds of sandbox that this node has."""

from __future__ import annotations

from collections.abc import Mapping

from invigilator.guard.home import Home
from invigilator.sandbox.base import Backend
from invigilator.sandbox.container import ContainerBackend
from invigilator.sandbox.process import ProcessBackend


def load(home: Home) -> Mapping[str, Backend]:
    """The backends by name."""
    process = ProcessBackend(home.root)
    # What is made last goes first: containers use what the process backend holds.
    made: list[Backend] = [ContainerBackend(process.machinery), process]
    return {backend.name: backend for backend in made}
