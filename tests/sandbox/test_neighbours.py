"""Two sandboxes against each other: what reaches a process within one does not reach it from the next."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import Box, Result

from invigilator.profiles.policy import Policy
from invigilator.sandbox.base import SandboxSpec
from invigilator.sandbox.commands import Command

if TYPE_CHECKING:
    from conftest import MakeBox

SECRET = "the neighbours must not have this"
VICTIM = f"""
import os, socket, time
os.environ["SECRET"] = {SECRET!r}
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0neighbour"); abstract.listen()
datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); datagrams.bind("\\0datagrams")
named = socket.socket(socket.AF_UNIX); named.bind("/tmp/named"); named.listen()
tcp = socket.create_server(("127.0.0.1", 4711))
tcp6 = socket.create_server(("::1", 4712), family=socket.AF_INET6)
for folder in ("/tmp", "/usr", "/workspace", "/dev/shm", "/var/tmp", "/root"):
    open(folder + "/secret", "w").write({SECRET!r})
os.mkfifo("/workspace/pipe")
print(os.getpid(), flush=True)
time.sleep(300)
"""
PRELUDE = """
import ctypes, os, socket, sys
inside, outside = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
numbers = {inside, outside, *(int(p) for p in os.listdir("/proc") if p.isdigit())} - {1, os.getpid()}
def reached(what): print("REACHED", what)
def attempt(action):
    try: return action()
    except OSError: return None
def each(action, them=numbers):
    for one in them:
        if attempt(lambda: action(one)): reached(one)
"""
ATTACKS = {
    "signals": "each(lambda p: os.kill(p, 0) or 1, {*range(2, 100_000)} - {os.getpid()})",
    "pidfd": "each(lambda p: os.pidfd_open(p))",
    "tracing": "each(lambda p: libc.ptrace(0x4206, p, None, None) == 0)",
    "arguments": "each(lambda p: open(f'/proc/{p}/cmdline','rb').read())",
    "memory": "each(lambda p: open(f'/proc/{p}/mem','rb'))",
    "root": "each(lambda p: open(f'/proc/{p}/root/tmp/secret').read())",
    "descriptors": "each(lambda p: os.listdir(f'/proc/{p}/fd'))",
    "priorities": "each(lambda p: os.sched_setscheduler(p, 0, os.sched_param(0)) or 1)",
    "limits": "import resource; each(lambda p: resource.prlimit(p, resource.RLIMIT_NOFILE))",
    "abstract": "each(lambda name: socket.socket(socket.AF_UNIX).connect(name) or 1, ['\\0neighbour'])",
    "datagrams": "each(lambda name: socket.socket(socket.AF_UNIX, 2).sendto(b'x', name), ['\\0datagrams'])",
    "named": "each(lambda name: socket.socket(socket.AF_UNIX).connect(name) or 1, ['/tmp/named'])",
    "listed": "'@neighbour' in open('/proc/net/unix').read() and reached('its name')",
    "tcp": "attempt(lambda: reached(socket.create_connection(('127.0.0.1', 4711), 2)))",
    "tcp6": "attempt(lambda: reached(socket.create_connection(('::1', 4712), 2)))",
    "ports": "'1267' in open('/proc/net/tcp').read() and reached('its port')",
    "files": (
        "each(lambda f: open(f + '/secret').read(),"
        " ('/tmp', '/usr', '/workspace', '/dev/shm', '/var/tmp', '/root'))"
    ),
    "pipe": "attempt(lambda: os.open('/workspace/pipe', os.O_RDONLY | os.O_NONBLOCK)) and reached('pipe')",
}  # fmt: skip


@dataclass
class Victim:
    """A process in a sandbox. `inside`, `outside`: its process id there and on the host."""

    box: Box
    command: Command
    inside: int
    outside: int

    def attacked(self, attack: str, box: Box) -> Result:
        """The attack's outcome from a sandbox."""
        words = ("python3", "-c", PRELUDE + ATTACKS[attack], str(self.inside), str(self.outside))
        return box.run(*words)


@pytest.fixture(scope="module")
def pair(backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Victim, Box]]:  # type: ignore[no-untyped-def]
    """A victim, and another sandbox over the same workspace."""
    shared = tmp_path_factory.mktemp("shared")
    boxes = [backend.prepare(SandboxSpec(uuid.uuid4(), Policy(name="t"), workspace=shared)) for _ in range(2)]
    for one in boxes:
        one.start()
    first, second = map(Box, boxes)
    command, out, err = first.spawn("python3", "-c", VICTIM)
    inside = int(os.read(out, 64) or b"0")
    assert inside, os.read(err, 4096)
    yield Victim(first, command, inside, command.pid), second
    for one in boxes:
        one.remove()
    os.close(out), os.close(err)
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_reaches_a_process_does_not_reach_it_from_the_next_sandbox(
    pair: tuple[Victim, Box], attack: str
) -> None:
    victim, neighbour = pair
    at_home, from_next = victim.attacked(attack, victim.box), victim.attacked(attack, neighbour)
    assert b"REACHED" in at_home.out, (at_home.out + at_home.err, "else the attack proves nothing")
    assert from_next.code == 0 and from_next.out == b"", from_next.out + from_next.err
    assert victim.command.poll() is None


def test_killing_all_that_one_may_kills_nobody_next_door(pair: tuple[Victim, Box]) -> None:
    victim, neighbour = pair
    other, out, err = neighbour.spawn("sleep", "100")
    neighbour.run("python3", "-c", "import os; os.kill(-1, 9)")
    assert other.wait(60).signal == 9, "it kills what is its own"
    assert victim.command.poll() is None and victim.box.sandbox.alive and neighbour.sandbox.alive
    os.close(out), os.close(err)


def test_files_of_a_neighbour_that_lie_about_belong_to_nobody(make_box: MakeBox, workspace: Path) -> None:
    """Were a neighbour's file to come into sight, no id of the sandbox would be its owner's."""
    one, two = make_box(workspace=workspace), make_box(workspace=workspace)
    owners = []
    for box in (one, two):
        assert box.sh("echo x > /root/mine; chmod 600 /root/mine").code == 0
        layer = box.sandbox._layer
        assert layer is not None
        owners.append(os.stat("root/upper/root/mine", dir_fd=layer.fd).st_uid)
    maps = [box.sh("cat /proc/self/uid_map").text.split() for box in (one, two)]
    for owner, (_, first, count) in zip(reversed(owners), maps, strict=True):
        assert not int(first) <= owner < int(first) + int(count)
