"""What the fault tests need: ClickHouse's engine as a server, and a seed to repeat a failure with."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "store"))

from store_server import installed_library

SEED_VARIABLE = "FAULTS_SEED"


@pytest.fixture(scope="session")
def library() -> Path:
    """The engine of the test server, installed when it is not there."""
    return installed_library()


@pytest.fixture
def seed() -> int:
    """`$FAULTS_SEED`, else one that is drawn: what the test does at random follows from it."""
    drawn = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(10**6))
    print(f"repeat this run's choices with {SEED_VARIABLE}={drawn}")
    return drawn


@pytest.fixture
def place() -> Iterator[Path]:
    """A short folder that others may enter: serve runs as another user."""
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)
