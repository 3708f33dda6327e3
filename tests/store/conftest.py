"""A store of each kind for the tests: chDB in a folder, and a real ClickHouse server on loopback.

The server is the engine of the npm package `@chdb/lib-linux-x64-gnu`, whose command-line entry can open
ClickHouse's own HTTP listener; it is installed once into `.state/clickhouse`, which git ignores.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from invigilator.incidents.store import Store

PACKAGE = "@chdb/lib-linux-x64-gnu"
VERSION = "26.7.3-stable.1"
CACHE = Path(__file__).resolve().parents[2] / ".state" / "clickhouse"

RUN_SERVER = """
import ctypes, sys
library, data, port, seconds = sys.argv[1:]
query = ("SYSTEM START LISTEN HTTP; SELECT sleep(" + seconds + ") FORMAT Null SETTINGS "
         "function_sleep_max_microseconds_per_block = 0, max_execution_time = 0")
words = ["clickhouse", "--path=" + data, "--listen_host=127.0.0.1", "--http_port=" + port, "--query=" + query]
engine = ctypes.CDLL(library)
engine.chdb_query_cmdline.restype = ctypes.c_void_p
engine.chdb_query_cmdline.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
engine.chdb_query_cmdline(len(words), (ctypes.c_char_p * len(words))(*map(str.encode, words)))
"""
LIFETIME_S = 900


class Server:
    """A ClickHouse server on a free loopback port, that can be killed and started again on the same data."""

    def __init__(self, library: Path, data: Path) -> None:
        self.library, self.data = library, data
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            sys.executable,
            "-c",
            RUN_SERVER,
            str(self.library),
            str(self.data),
            str(self.port),
            str(LIFETIME_S),
        ]
        with (self.data / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/ping", timeout=1) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"the server did not answer: {(self.data / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)
            self.process = None


@pytest.fixture(scope="session")
def library() -> Path:
    """The engine of the test server, installed when it is not there."""
    path = CACHE / "node_modules" / PACKAGE / "libchdb.so"
    if not path.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is missing: the server half of the store's tests needs it (apt-get install npm)")
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [
            npm,
            "install",
            "--no-save",
            "--ignore-scripts",
            "--prefix",
            str(CACHE),
            f"{PACKAGE}@{VERSION}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr.strip()[-300:]}")
    return path


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
