"""The page of the demo: a service that also listens on loopback, and a token for it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time

from invigilator.guard.api.tokens import TokenFile
from invigilator.guard.errors import UnreachableError
from invigilator.guard.home import HOME_VARIABLE, Home, connect_unix

IDLE_S = 900
START_TIMEOUT_S = 30.0
TOKEN_TTL_S = 86_400.0


def open_page(home: Home) -> tuple[str, str]:
    """Start the service of `home`, listening on a free port of loopback; its address and a token's text."""
    home.make()
    _, token = TokenFile(home.tokens).create("demo", "researcher", TOKEN_TTL_S)
    port = _free_port()
    command = [sys.executable, "-m", "invigilator.guard.cli.main", "serve", "--listen", f"127.0.0.1:{port}"]
    log = home.run / "serve.log"
    with log.open("ab") as out:
        daemon = subprocess.Popen(
            [*command, "--idle-timeout", str(IDLE_S)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env={**os.environ, HOME_VARIABLE: str(home.root)},
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and daemon.poll() is None:
        with contextlib.suppress(OSError):
            connect_unix(home.serve_socket, socket.SOCK_STREAM).close()
            return f"http://127.0.0.1:{port}/", token
        time.sleep(0.05)
    if daemon.poll() is None:
        daemon.kill()
    raise UnreachableError("the service did not start", where=str(log))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
