"""Links of sandboxes, in a network namespace that stands for the host."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from invigilator.profiles.network import NetRule
from invigilator.sandbox.network import Link, Needs, filter_text
from invigilator.sandbox.process import ProcessBackend

HOST = """
import os, sys, socket, subprocess, threading, uuid
from pathlib import Path
from invigilator.profiles.policy import EgressRule, Network, Policy
from invigilator.sandbox.base import SandboxSpec, Streams
from invigilator.sandbox.process import ProcessBackend

def forwards(): return Path('/proc/sys/net/ipv4/conf/up0/forwarding').read_text().strip()
def sh(text): subprocess.run(["bash", "-ec", text], check=True)
sh('''
mount -t tmpfs run /run
ip link set lo up
ip link add up0 type veth peer name up1; ip link set up1 up
ip addr add 198.51.100.1/24 dev up0; ip link set up0 up
''')
servers = [socket.create_server((address, port)) for address in ("198.51.100.1",) for port in (80, 81)]
for server in servers:
    def serve(server=server):
        while True:
            server.accept()[0].sendall(b"served")
    threading.Thread(target=serve, daemon=True).start()
backend = ProcessBackend(Path(sys.argv[1]), stock=0)
null = os.open("/dev/null", os.O_RDWR)

def box_of(network):
    box = backend.prepare(SandboxSpec(uuid.uuid4(), Policy(name="t", network=network)))
    box.start()
    return box

def ask(box, address, port):
    script = (f"import socket\\ntry:\\n s=socket.create_connection(({address!r},{port}),1)\\n"
              " print(s.recv(9))\\n"
              "except OSError as e: print(type(e).__name__, e.errno)")
    read, write = os.pipe()
    command = box.execute(["python3", "-c", script], phase="agent", streams=Streams(null, write, 2))
    os.close(write)
    answer = os.fdopen(read, "rb").read().decode().strip()
    command.wait(60)
    return answer
"""


@pytest.fixture
def as_host(tmp_path: Path, backend: ProcessBackend):  # type: ignore[no-untyped-def]
    """Run a script in a network and mount namespace of its own; its output."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "roots").symlink_to(backend._home / "roots")

    def run(script: str) -> str:
        whole = HOST + textwrap.dedent(script) + "\nbackend.close()\n"
        command = ["unshare", "-n", "-m", sys.executable, "-c", whole, str(home)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_an_allowed_address_answers_and_others_are_dropped_at_the_hosts_end(as_host) -> None:  # type: ignore[no-untyped-def]
    out = as_host(
        """
        rule = EgressRule(name="web", target="198.51.100.1", ports=[80])
        box = box_of(Network(egress=[rule]))
        print(ask(box, "198.51.100.1", 80), ask(box, "198.51.100.1", 81), ask(box, "127.0.0.1", 1), sep="|")
        box.remove()
        """
    )
    answers = out.strip().split("|")
    assert answers[0] == "b'served'"
    assert answers[1].startswith("TimeoutError")
    assert answers[2] == "ConnectionRefusedError 111"


def test_frames_of_a_packet_socket_are_dropped_at_the_hosts_end(as_host) -> None:  # type: ignore[no-untyped-def]
    """It asks no rule of the sandbox's end; seccomp and AppArmor, which refuse the socket, are left out."""
    out = as_host(
        """
        import ctypes, fcntl, struct
        rule = EgressRule(name="web", target="198.51.100.1", ports=[80], protocol="udp")
        box = box_of(Network(egress=[rule]))
        link, (allowed, denied) = box._outside.link, [socket.socket(type=socket.SOCK_DGRAM) for _ in "ab"]
        for one, port in ((allowed, 80), (denied, 81)):
            one.bind(("198.51.100.1", port))
        allowed.settimeout(60)
        asked = fcntl.ioctl(allowed, 0x8927, struct.pack("40s", link.name.encode()))  # SIOCGIFHWADDR
        mac = asked[18:24]

        def frame(source, port, said):
            udp = struct.pack("!HHHH", 9, port, 8 + len(said), 0) + said
            head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0,
                               socket.inet_aton(source), socket.inet_aton("198.51.100.1"))
            total = sum(struct.unpack("!10H", head))
            total = (total & 0xFFFF) + (total >> 16)
            check = struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)
            return mac + b"\\2aaaaa" + struct.pack("!H", 0x800) + head[:10] + check + head[12:] + udp

        def inside():
            assert ctypes.CDLL(None).setns(box._outside._namespace(), 0x40000000) == 0  # CLONE_NEWNET
            name = next(name for _, name in socket.if_nameindex() if name != "lo")
            wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            wire.bind((name, 0x800))
            wire.send(frame(link.inside, 81, b"another port"))
            wire.send(frame("198.51.100.77", 80, b"another's address"))
            wire.send(frame(link.inside, 80, b"what is allowed"))

        one = threading.Thread(target=inside)
        one.start(), one.join()
        print(allowed.recv(99).decode())
        denied.setblocking(False)
        try:
            print(denied.recv(99))
        except BlockingIOError:
            print("nothing")
        box.remove()
        """
    )
    assert out.splitlines() == ["what is allowed", "nothing"]


def test_an_open_policy_reaches_all_and_sandboxes_do_not_reach_each_other(as_host) -> None:  # type: ignore[no-untyped-def]
    out = as_host(
        """
        one, two = box_of(Network(default_action="allow")), box_of(Network(default_action="allow"))
        served = ask(one, "198.51.100.1", 80), ask(two, "198.51.100.1", 81)
        print(*served, ask(one, two._outside.link.inside, 9), sep="|")
        one.remove(), two.remove()
        """
    )
    answers = out.strip().split("|")
    assert answers[:2] == ["b'served'", "b'served'"] and answers[2].startswith("TimeoutError")


def test_links_and_tables_go(as_host) -> None:  # type: ignore[no-untyped-def]
    out = as_host(
        """
        box = box_of(Network(default_action="allow"))
        name = box._outside.link.name
        print(sum(name in row for row in os.listdir("/proc/sys/net/ipv4/conf")))
        box.remove()
        print(sum(name in row for row in os.listdir("/proc/sys/net/ipv4/conf")))
        backend._shared.links.close()
        print(repr(subprocess.run(["nft", "list", "tables"], capture_output=True, text=True).stdout))
        """
    )
    assert out.split() == ["1", "0", "''"]


def test_links_and_tables_go_with_an_agent_that_is_killed(as_host) -> None:  # type: ignore[no-untyped-def]
    out = as_host(
        """
        def seen():
            links = [one for one in os.listdir("/proc/sys/net/ipv4/conf") if one.startswith("gv")]
            rules = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True).stdout.split()
            return len(links), rules.count("table")
        other = Path(sys.argv[1]).with_name("other")
        other.mkdir()
        (other / "roots").symlink_to(Path(sys.argv[1]) / "roots")
        code = (
            "import sys, time, uuid; from pathlib import Path; from invigilator.profiles.policy import *; "
            "from invigilator.sandbox.base import SandboxSpec; "
            "from invigilator.sandbox.process import ProcessBackend\\n"
            "box = ProcessBackend(Path(sys.argv[1]), stock=0).prepare(SandboxSpec(uuid.uuid4(), "
            "Policy(name='t', network=Network(default_action='allow'))))\\n"
            "box.start(); print(flush=True); time.sleep(99)"
        )
        agent = subprocess.Popen([sys.executable, "-c", code, str(other)], stdout=subprocess.PIPE)
        agent.stdout.readline()
        before = seen()
        agent.kill(); agent.wait()
        import time
        deadline = time.monotonic() + 60
        while seen() != (0, 0) and time.monotonic() < deadline:
            time.sleep(0.1)
        on = forwards()
        backend.sweep()
        print(before, seen(), on, forwards())
        """
    )
    assert out.strip() == "(1, 2) (0, 0) 1 0"


def test_uplinks_forward_only_while_something_is_linked(as_host) -> None:  # type: ignore[no-untyped-def]
    out = as_host(
        """
        other = Path(sys.argv[1]).with_name("other")
        other.mkdir()
        (other / "roots").symlink_to(Path(sys.argv[1]) / "roots")
        two = ProcessBackend(other, stock=0)  # of another home
        print(forwards())
        one, backend_of_one = box_of(Network(default_action="allow")), backend
        backend = two
        later = box_of(Network(default_action="allow"))
        print(forwards())
        one.remove()
        two.sweep()
        print(forwards(), ask(later, "198.51.100.1", 80))
        later.remove()
        print(forwards())
        third = box_of(Network(default_action="allow"))
        print(forwards(), ask(third, "198.51.100.1", 80))
        third.remove()
        Path("/proc/sys/net/ipv4/conf/up0/forwarding").write_text("1")
        fourth = box_of(Network(default_action="allow"))
        fourth.remove()
        print(forwards(), os.listdir("/run/invigilator"))
        backend_of_one.close()
        """
    )
    assert out.splitlines() == ["0", "1", "1 b'served'", "0", "1 b'served'", "1 []"]


def test_the_filter_says_what_the_rules_say() -> None:
    mapped = bytes(10) + b"\xff\xff" + bytes([10, 1, 0, 0])
    rules = (
        NetRule(mapped, 112, 443, 443, 6, True, "a"), NetRule(bytes(16), 128, 1, 2, 6, True, "v6"),
        NetRule(mapped, 128, 0, 65535, 0, True, "any"), NetRule(mapped, 112, 53, 53, 0, True, "dns"),
    )  # fmt: skip
    text = filter_text(Link("gv1-0", "100.127.192.1", "100.127.192.0"), Needs(True, False, rules))
    assert "ip daddr 10.1.0.0/16 tcp dport 443-443 accept" in text
    assert "ip daddr 10.1.0.0/32 accept" in text
    assert "ip daddr 10.1.0.0/16 meta l4proto { tcp, udp } th dport 53-53 accept" in text
    assert "policy drop" in text and "ip saddr != 100.127.192.1 drop" in text and "::" not in text


def test_addresses_of_names_are_added_to_their_rules_alone_and_a_refusal_is_told(as_host) -> None:  # type: ignore[no-untyped-def]
    out = as_host(
        """
        import ipaddress, json
        from invigilator.sandbox.base import SandboxError
        from invigilator.sandbox.network import Needs
        named = tuple(EgressRule(name=name, target=f"*.{name}.example") for name in ("one", "two"))
        box = box_of(Network(egress=list(named)))
        links, link, wanted = backend._shared.links, box._outside.link, Needs(True, False, (), {}, named)
        tables, own = links._tables, links._tables._socket
        links.admit(link, wanted, "a.one.example", [ipaddress.ip_address("198.51.100.7")])
        links.admit(link, wanted, "b.one.example", [ipaddress.ip_address(f"198.51.100.{n}") for n in (7, 8)])
        tables._socket = None  # as the library itself says it
        links.admit(link, wanted, "a.two.example", [ipaddress.ip_address("198.51.100.9")])
        told = subprocess.run(["nft", "-j", "list", "table", "netdev", link.name], capture_output=True)
        listed = [one["set"] for one in json.loads(told.stdout)["nftables"] if "set" in one]
        sets = {one["name"]: sorted(one["elem"]) for one in listed}
        tables._socket = own
        try:
            tables.add(link.name, "n7", [ipaddress.ip_address("198.51.100.9")])
        except SandboxError as error:
            said = str(error)
        box.remove()
        print(json.dumps([own is not None, sets, said]))
        """
    )
    assert json.loads(out) == [
        True,
        {"n0": ["198.51.100.7", "198.51.100.8"], "n1": ["198.51.100.9"]},
        "nftables refuses an address for the link's filter: No such file or directory",
    ]
