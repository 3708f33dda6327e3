"""The container backend by itself: links, paths that are not there, a container that others end, dead agents.

In a network namespace of the test's own: links make their host forward.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 120.0
HOST = """
import os, signal, socket, subprocess, sys, threading, time, uuid
from pathlib import Path
from invigilator.profiles.policy import EgressRule, Filesystem, IoLimits, Limits, Network, Policy
from invigilator.sandbox.base import SandboxSpec, Streams
from invigilator.sandbox.container import ContainerBackend
from invigilator.sandbox.process import ProcessBackend

process = ProcessBackend(Path(sys.argv[1]), stock=0)
backend = ContainerBackend(process.machinery)

def box_of(**policy):
    box = backend.prepare(SandboxSpec(uuid.uuid4(), Policy(name="test", **policy), image="room:1"))
    box.start()
    return box

def sh(box, script, phase="agent", **more):
    ours, theirs = os.pipe()
    nothing = os.open("/dev/null", os.O_RDWR)
    streams = Streams(nothing, theirs, theirs)
    box.execute(["sh", "-c", script], phase=phase, streams=streams, **more).wait(30)
    os.close(theirs)
    with os.fdopen(ours) as told:
        return told.read().strip()
"""
SERVE = """
for words in ("link set lo up", "addr add 198.51.100.1/32 dev lo"):
    subprocess.run(["ip", *words.split()], check=True)

def serve(port):
    listener = socket.create_server(("198.51.100.1", port))
    def answer():
        while True:
            with listener.accept()[0] as one:
                one.sendall(b"served")
    threading.Thread(target=answer, daemon=True).start()

serve(80), serve(81)
"""


@pytest.fixture
def as_host(daemon: Any, tmp_path: Path) -> Callable[[str], str]:
    """Run a script beside the daemon; its output."""
    home = tmp_path / "home"
    home.mkdir()

    def run(script: str) -> str:
        command = ["unshare", "-n", "-m", sys.executable, "-c", HOST + textwrap.dedent(script), str(home)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DOCKER_HOST": daemon.host},
        )
        assert done.returncode in (0, -9), done.stderr
        return done.stdout

    return run


def test_a_container_reaches_what_the_policy_allows_and_nothing_else(as_host: Callable[[str], str]) -> None:
    out = as_host(
        SERVE
        + textwrap.dedent(
            """
            box = box_of(network=Network(egress=[EgressRule(name="web", target="198.51.100.1", ports=[80])]))
            ask = 'nc -w 2 198.51.100.1 {} </dev/null 2>/dev/null; echo " $?"'
            print(sh(box, ask.format(80)).split(), sh(box, ask.format(81)).split()[-1])
            box.remove()
            alone = box_of()
            print(len(sh(alone, "cat /proc/net/dev").splitlines()), sh(alone, ask.format(80)).split()[-1])
            alone.remove(), backend.close(), process.close()
            """
        )
    )
    assert out == "['served', '0'] 1\n3 1\n"


def test_disks_are_limited_for_the_guards_commands_and_for_what_others_run_in_it(
    as_host: Callable[[str], str],
) -> None:
    out = as_host(
        """
        box = box_of(limits=Limits(io=IoLimits(write_bytes_per_s=4 << 20, read_ops_per_s=5000)))
        docker = backend._engine._api().inspect_container(box._container.id)["HostConfig"]
        writing, reading = docker["BlkioDeviceWriteBps"], docker["BlkioDeviceReadIOps"]
        print(box.enforcement()["io"], len(writing), reading[0]["Rate"])
        found = box._groups.disks.disks
        print(writing[0]["Path"] in [one.name for one in found.written])
        box.remove(), backend.close(), process.close()
        """
    )
    assert out == "enforce 1 5000\nTrue\n"


def test_what_the_platform_hides_while_the_agent_holds_the_folder_is_out_of_reach(
    as_host: Callable[[str], str],
) -> None:
    out = as_host(
        """
        box = box_of(filesystem=Filesystem(hidden=["/platform"]))
        hold = "mkdir /platform; cd /platform; touch /tmp/held; while ! [ -e /tmp/go ]; do sleep 0.1; done"
        take = "cat answers more /proc/self/cwd/answers /platform/answers /platform/more 2>/dev/null"
        agent = threading.Thread(target=lambda: print("agent", sh(box, f"{hold}; {take}")))
        agent.start()
        while "held" not in sh(box, "ls /tmp"):
            time.sleep(0.1)
        box.write_file("/platform/answers", b"secret")
        print("platform", sh(box, "cat /platform/answers; echo hush > /platform/more", actor="platform"))
        sh(box, "touch /tmp/go")
        agent.join()
        print("verify", sh(box, "cat /platform/answers /platform/more", phase="verify"))
        box.remove(), backend.close(), process.close()
        """
    )
    assert out.splitlines() == ["platform secret", "agent ", "verify secrethush"]


def test_what_the_policy_hides_is_not_there_and_no_change_of_the_agent_s(
    as_host: Callable[[str], str],
) -> None:
    out = as_host(
        """
        box = box_of(filesystem=Filesystem(hidden=["/bin/wget", "/root"]))
        print(sh(box, "ls -d /bin/wget /root 2>&1 | grep -c 'No such file'; ls /bin/cat"))
        print([(one.path, one.change) for one in box.changes(["/bin", "/etc"])])
        sh(box, "rm /bin/cat; echo x >/etc/hostname; echo y >/etc/new; mkdir /bin/deep; touch /bin/deep/file")
        print(sorted((one.path, one.change) for one in box.changes(["/bin", "/etc"])))
        box.remove(), box.remove(), backend.close(), process.close()
        """
    )
    lines = out.splitlines()
    assert lines[:3] == ["2", "/bin/cat", "[]"]
    assert lines[3] == str(
        [
            (b"/bin/cat", "removed"),
            (b"/bin/deep", "added"),
            (b"/bin/deep/file", "added"),
            (b"/etc/new", "added"),
        ]
    )


def test_a_container_that_somebody_else_ends_is_no_longer_alive(as_host: Callable[[str], str]) -> None:
    out = as_host(
        """
        from docker import APIClient
        box = box_of()
        print(box.alive)
        api = APIClient(base_url=os.environ["DOCKER_HOST"])
        api.kill(f"invigilator-{box.spec.sandbox_id}")
        while box.alive:
            time.sleep(0.01)
        print(box.alive)
        box.remove(), backend.close(), process.close()
        """
    )
    assert out == "True\nFalse\n"


def test_containers_of_a_dead_agent_are_removed_by_the_next(
    as_host: Callable[[str], str], daemon: Any
) -> None:
    out = as_host(
        """
        box = box_of()
        print(box.spec.sandbox_id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    name = f"/invigilator-{out.strip()}"
    assert name in [one["Names"][0] for one in daemon.client().containers(all=True)]
    assert as_host("print(backend.sweep()); backend.close(), process.close()") == "1\n"
    assert daemon.client().containers(all=True) == []
    deadline = time.monotonic() + TIMEOUT_S
    # Not by `Path.glob`, which fails where others' vanish under it.
    while any(out.strip() in inner for _, inner, _ in os.walk("/sys/fs/cgroup")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_container_asks_the_guard_for_names(as_host: Callable[[str], str]) -> None:
    out = as_host(
        SERVE
        + textwrap.dedent(
            """
            import dns.message, dns.rrset
            from invigilator.sandbox.base import NameEvents
            os.environ["INVIGILATOR_NAMESERVERS"] = "127.0.0.1:5399"
            def upstream(server):
                while True:
                    data, peer = server.recvfrom(999)
                    query = dns.message.from_wire(data)
                    response, asked = dns.message.make_response(query), query.question[0]
                    if asked.rdtype == 1:
                        response.answer.append(dns.rrset.from_text(asked.name, 9, "IN", "A", "198.51.100.1"))
                    server.sendto(response.to_wire(), peer)
            server = socket.socket(type=socket.SOCK_DGRAM)
            server.bind(("127.0.0.1", 5399))
            threading.Thread(target=upstream, args=[server], daemon=True).start()
            rule = EgressRule(name="web", target="*.zone.example", ports=[80], private=True)
            box, refused = box_of(network=Network(egress=[rule])), []
            box.on_names(NameEvents(lambda *_: None, lambda *one: refused.append(one), lambda _: None))
            ask = 'nc -w {} {} 80 </dev/null 2>/dev/null; echo " $?"'
            print(sh(box, "cat /etc/resolv.conf").split())
            print(sh(box, ask.format(1, "198.51.100.1")).split(), end=" ")
            print(sh(box, ask.format(20, "a.zone.example")).split())
            print(sh(box, ask.format(20, "other.example")).split()[-1], refused, box.enforcement()["names"])
            box.remove(), backend.close(), process.close()
            """
        )
    )
    assert out.splitlines() == [
        "['nameserver', '127.0.0.53']",
        "['1'] ['served', '0']",
        "1 [('agent', 'other.example', 'default_action')] enforce",
    ]
