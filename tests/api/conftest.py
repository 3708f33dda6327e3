"""One service for all tests that only add rollouts of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Service, serving

from invigilator.guard.home import Home


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for the tests that only add rollouts of their own."""
    with serving(Home(tmp_path_factory.mktemp("home"))) as running:
        yield running


@pytest.fixture
def spool_folder(tmp_path: Path) -> Path:
    """A folder to spool into."""
    return tmp_path / "spool"


@pytest.fixture(scope="session", autouse=True)
def _no_address_from_outside() -> Iterator[None]:
    """The tests say themselves where the service is."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("INVIGILATOR_")}
    yield
    os.environ.update(kept)
