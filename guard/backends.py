"""The kinds of sandbox that this node has."""

from __future__ import annotations

from collections.abc import Mapping

from invigilator.guard.home import Home
from invigilator.sandbox.base import Backend
from invigilator.sandbox.process import ProcessBackend


def load(home: Home) -> Mapping[str, Backend]:
    """The backends by name."""
    made: list[Backend] = [ProcessBackend(home.root)]
    return {backend.name: backend for backend in made}
