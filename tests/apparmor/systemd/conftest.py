"""Docker's daemon under a systemd that is the guest's first process, with cgroup v2 alone and AppArmor."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[2]
sys.path += [str(TESTS / "container"), str(TESTS / "apparmor" / "tcg")]


@pytest.fixture(scope="session")
def daemon() -> Iterator[Any]:
    from docker_daemon import import_image, start

    made = start(Path(tempfile.mkdtemp(prefix="dockerd-", dir="/tmp")), driver="systemd")
    try:
        import_image(made)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def node(daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from node import HOME, Node
    from record import served

    home = tmp_path_factory.mktemp("docker") / "home"
    (home / "roots").mkdir(parents=True)
    for launcher in (HOME / "roots").glob("launcher-*"):
        shutil.copy2(launcher, home / "roots")
    (home / "attachable").write_text(f"/{daemon.cgroup}/\n")
    os.environ["DOCKER_HOST"] = daemon.host
    with served() as (url, record):
        made = Node(home, url, record, {"DOCKER_HOST": daemon.host})
        with made.agent():
            yield made
