"""What tests of every kind share."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest


@pytest.fixture
def open_checkout() -> None:
    """Skip where other users cannot reach this checkout's Python, so that nothing can be run as them."""
    for folder in Path(sys.prefix).parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            pytest.skip(f"other users cannot enter {folder}: clone elsewhere to run this test")
