"""The real command, as a process, against a real service."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commanding import Guard

from invigilator.guard.home import Home

sys.path.append(str(Path(__file__).parent.parent / "api"))


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The tests' environment without anything that says where a service is."""
    return {name: value for name, value in os.environ.items() if not name.startswith("INVIGILATOR_")}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A running service with a few rollouts, some of them with hostile names."""
    from samples_cli import fill
    from serving import serving

    with serving(Home(tmp_path_factory.mktemp("home"))) as running:
        fill(running, tmp_path_factory.mktemp("spool") / "spool")
        yield running


@pytest.fixture(scope="session")
def guard(served: object, environment: dict[str, str]) -> Guard:
    """The command against the running service."""
    return Guard(served.home.root, environment)  # type: ignore[attr-defined]


@pytest.fixture
def lonely(tmp_path: Path, environment: dict[str, str]) -> Guard:
    """The command in an empty home where no service runs."""
    return Guard(tmp_path / "home", environment)
