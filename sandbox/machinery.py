"""What the sandboxes of one agent share, and how long their steps take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from invigilator.sandbox import apparmor, network, root
from invigilator.sandbox.cgroups import Cgroups
from invigilator.sandbox.ids import Ids
from invigilator.sandbox.launching import Launcher
from invigilator.sandbox.layer import Layers
from invigilator.sandbox.resolver.keeper import Resolver


@dataclass(slots=True)
class Machinery:
    """What the sandboxes of one agent share."""

    home: Path
    launcher: Launcher
    cgroups: Cgroups
    ids: Ids
    layers: Layers
    roots: root.Roots
    links: network.Links
    profiles: apparmor.Profiles
    resolver: Resolver

    @property
    def stage(self) -> Path:
        """An empty folder to build upon, in private mount namespaces only."""
        return self.home / "sandboxes"


@dataclass(slots=True)
class Stopwatch:
    """Seconds of each step of a sandbox's making and unmaking, by name."""

    steps: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.steps[name] = self.steps.get(name, 0.0) + time.perf_counter() - began
