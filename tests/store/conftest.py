"""A store of each kind for the tests: chDB in a folder, and a real ClickHouse server on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_server import Server, installed_library

from invigilator.incidents.store import Store


@pytest.fixture(scope="session")
def library() -> Path:
    """The engine of the test server, installed when it is not there."""
    return installed_library()


@pytest.fixture(scope="session")
def shared_server(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(library, tmp_path_factory.mktemp("clickhouse"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_server(library: Path, tmp_path: Path) -> Iterator[Server]:
    """A server for a test that kills it."""
    data = tmp_path / "server"
    data.mkdir()
    server = Server(library, data)
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["chdb", "server"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store can be made: a folder, or a database of its own on the server."""
    if request.param == "chdb":
        return str(tmp_path / "store")
    server: Server = request.getfixturevalue("shared_server")
    return f"{server.url}/t_{uuid.uuid4().hex}"


@pytest.fixture
def store(target: str) -> Iterator[Store]:
    opened = Store.open(target)
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python program that is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        here = str(Path(__file__).parent)
        environment = {**os.environ, "PYTHONPATH": here}
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
