"""The demo's own private network: hosts with services, in a network namespace that ends with the demo."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

LINK = "gvdemo0"
HERE = "10.213.77.1/24"
HOSTS = ("10.213.77.10", "10.213.77.14", "10.213.77.23")
TIMEOUT_S = 10.0

_SERVICES = """
import select, socket, sys
print("apart", flush=True)
sys.stdin.readline()
listeners = []
for host, port in [(h, p) for h in sys.argv[1:] for p in (22, 6379, 8080)]:
    one = socket.socket(); one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((host, port)); one.listen(64); listeners.append(one)
print("ready", flush=True)
while True:
    for one in select.select(listeners, [], [])[0]:
        connection, _ = one.accept()
        connection.close()
"""


@contextlib.contextmanager
def private_network() -> Iterator[bool]:
    """While open, `HOSTS` answer on the machine's side of `LINK`; False where such a network cannot be made:
    a scan then meets refusals only."""
    # It dies with the demo, however that ends, and the namespace and the link die with it.
    apart = ["unshare", "--net", "setpriv", "--pdeathsig", "KILL"]
    service = subprocess.Popen(
        [*apart, sys.executable, "-c", _SERVICES, *HOSTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield _connect(service)
    finally:
        service.kill()
        service.communicate(timeout=TIMEOUT_S)


def _connect(service: subprocess.Popen[str]) -> bool:
    assert service.stdin is not None and service.stdout is not None
    if service.stdout.readline() != "apart\n":
        return False
    inside = ["nsenter", "--target", str(service.pid), "--net", "ip"]
    commands = [
        ["ip", "link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", str(service.pid)],
        ["ip", "address", "add", HERE, "dev", LINK],
        ["ip", "link", "set", LINK, "up"],
        *([*inside, "address", "add", f"{host}/24", "dev", "eth0"] for host in HOSTS),
        [*inside, "link", "set", "eth0", "up"],
        [*inside, "route", "add", "default", "via", HERE.split("/")[0]],
    ]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
        except OSError:
            return False
        if done.returncode:
            return False
    service.stdin.write("\n")
    service.stdin.flush()
    return service.stdout.readline() == "ready\n"
