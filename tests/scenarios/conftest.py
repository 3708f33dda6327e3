"""One agent for all scenarios, in a state folder that ends with the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from invigilator.guard.evaluation.homes import Homes
from invigilator.guard.evaluation.suite import Suite, load_suite


@pytest.fixture(scope="session")
def suite() -> Suite:
    return load_suite(Path(__file__).parent)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    if os.geteuid() != 0:
        pytest.skip("real sandboxes need root")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("the sensor needs the kernel's BTF (/sys/kernel/btf/vmlinux)")
    with Homes(tmp_path_factory.mktemp("homes")) as opened:
        yield opened
