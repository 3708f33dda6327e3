"""A real ClickHouse server on loopback.

The server is the engine of the npm package `@chdb/lib-linux-x64-gnu`, whose command-line entry can open
ClickHouse's own HTTP listener; it is installed once into `.state/clickhouse`, which git ignores.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

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


def installed_library() -> Path:
    """The server's engine, installed when it is not there; a test that npm cannot give it to is skipped."""
    path = CACHE / "node_modules" / PACKAGE / "libchdb.so"
    if not path.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is missing: tests with a ClickHouse server need it (apt-get install npm)")
        CACHE.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--no-save", "--ignore-scripts", "--prefix", str(CACHE)]
        done = subprocess.run([*install, f"{PACKAGE}@{VERSION}"], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr.strip()[-300:]}")
    return path


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
