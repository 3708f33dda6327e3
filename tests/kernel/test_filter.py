"""Network rules in force: refusals and their events, in network namespaces that the tests make."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from invigilator.ebpf.events import Actor, EventClass, Kind, NetHook, Phase, Tier
from invigilator.ebpf.network import NetRule, RuleError
from invigilator.ebpf.sensor import Sensor

from .conftest import Box

UDP, TCP = socket.IPPROTO_UDP, socket.IPPROTO_TCP
IN_A_NAMESPACE = """
assert call(272, 0x40000000) == 0  # CLONE_NEWNET
import fcntl
c = socket.socket(type=socket.SOCK_DGRAM)
def up(name, address=None):
    if address: fcntl.ioctl(c, 0x8916, struct.pack('16sHH4s8x', name, 2, 0, socket.inet_aton(address)))
    fcntl.ioctl(c, 0x8914, struct.pack('16sH14x', name, 0x41))
up(b'lo')
t = os.open('/dev/net/tun', os.O_RDWR); fcntl.ioctl(t, 0x400454ca, struct.pack('16sH14x', b't0', 0x1001))
up(b't0', '10.9.0.1')
fcntl.ioctl(c, 0x891c, struct.pack('16sHH4s8x', b't0', 2, 0, socket.inet_aton('255.255.0.0')))
def ask(address, port=80, type=socket.SOCK_DGRAM, family=socket.AF_INET):
    s = socket.socket(family, type); s.setblocking(False)
    r = s.connect_ex((address, port)); s.close(); return r
"""
"""A network of the child's own: loopback, and a tun device for 10.9.0.0/16 behind which nobody is."""


@pytest.fixture(scope="session", autouse=True)
def filters(sensor: Sensor, parent_cgroup: Path) -> Iterator[None]:
    handles = sensor.attach_network(parent_cgroup)
    yield
    sensor.detach_network(handles)


def mapped(address: str) -> bytes:
    return b"\0" * 10 + b"\xff\xff" + socket.inet_aton(address)


def rules(box: Box, default: bool, *given: NetRule, **options: Any) -> None:
    box.sensor.set_network(box.slot, Phase.AGENT, default, list(given), **options)


def test_denied_connect_is_refused_and_told(box: Box) -> None:
    rules(box, False)
    box.sensor.set_step(box.slot, 4, Actor.AGENT)
    told = box.run(IN_A_NAMESPACE + "print(ask('10.9.0.7', 80, socket.SOCK_STREAM))")
    assert int(told.output) == errno.EPERM
    event = told.one(Kind.NET_DENIED)
    assert (event["address"], event["port"], event["protocol"]) == (mapped("10.9.0.7"), 80, TCP)
    assert (event["a0"], event["result"], event["family"]) == (NetHook.CONNECT, -errno.EPERM, socket.AF_INET)
    assert (event["class"], event["tiers"]) == (EventClass.NETWORK, Tier.CGROUP)
    assert (event["pid"], event["phase"], event["step"]) == (told.pid, Phase.AGENT, 4)
    assert told.one(Kind.CONNECT)["result"] == -errno.EPERM


def test_the_first_rule_that_matches_decides_and_is_named(box: Box) -> None:
    rules(
        box,
        False,
        NetRule.of("10.9.0.7", allow=False, port_low=22, port_high=22, name="no ssh"),
        NetRule.of("10.9.0.0/24", protocol=UDP, name="the net"),
        NetRule.of("10.9.0.7", allow=True, protocol=TCP, port_low=80, port_high=90, name="web"),
    )
    told = box.run(
        IN_A_NAMESPACE
        + "print(ask('10.9.0.7', 22), ask('10.9.0.7', 23), ask('10.9.0.8', 22), ask('10.9.1.1', 22),\n"
        "      ask('10.9.0.7', 85, 1), ask('10.9.0.7', 91, 1), ask('10.9.0.8', 85, 1))"
    )
    e, p = errno.EPERM, errno.EINPROGRESS
    assert [int(word) for word in told.output.split()] == [e, 0, 0, e, p, e, e]
    assert told.of(Kind.NET_DENIED)[0]["text"] == b"no ssh"
    assert told.of(Kind.NET_DENIED)[1]["text"] == b""


@pytest.mark.parametrize("address", ["::ffff:10.9.0.7", "::ffff:10.9.255.1"])
def test_mapped_addresses_do_not_slip_through(box: Box, address: str) -> None:
    rules(box, True, NetRule.of("10.9.0.0/16", allow=False, name="private"))
    told = box.run(
        IN_A_NAMESPACE
        + f"print(ask('{address}', 80, 1, socket.AF_INET6), ask('{address}', 80, 2, socket.AF_INET6))\n"
        f"s = socket.socket(socket.AF_INET6, 2)\ntry: s.sendto(b'x', ('{address}', 9)); print(0)\n"
        "except OSError as f: print(f.errno)"
    )
    assert [int(word) for word in told.output.split()] == [errno.EPERM] * 3
    assert {e["address"] for e in told.of(Kind.NET_DENIED)} == {mapped(address.rpartition(":")[2])}


def test_loopback_and_its_other_names_are_allowed(box: Box) -> None:
    rules(box, False)
    told = box.run(
        IN_A_NAMESPACE + "print(ask('127.0.0.1', 9, 1), ask('127.9.9.9', 9), ask('0.0.0.0', 9),\n"
        "      ask('::1', 9, 2, socket.AF_INET6), ask('::', 9, 2, socket.AF_INET6))"
    )
    assert errno.EPERM not in [int(word) for word in told.output.split()]
    assert not told.of(Kind.NET_DENIED)


def test_shared_loopback_is_not_allowed(box: Box) -> None:
    """Where the sandbox shares the host's network, its loopback is the host's: 0.0.0.0 is no way round."""
    rules(box, False, NetRule.of("127.0.0.2"), loopback=False)
    told = box.run(
        IN_A_NAMESPACE + "print(ask('127.0.0.1', 9), ask('0.0.0.0', 9), ask('127.0.0.2', 9),\n"
        "      ask('::', 9, 2, socket.AF_INET6), ask('::1', 9, 2, socket.AF_INET6))"
    )
    e = errno.EPERM
    assert [int(word) for word in told.output.split()] == [e, e, 0, e, e]


def test_datagrams_without_connect(box: Box) -> None:
    rules(box, False, NetRule.of("10.9.0.5", name="one"))
    told = box.run(
        IN_A_NAMESPACE + "s = socket.socket(type=socket.SOCK_DGRAM); s.sendto(b'x', ('10.9.0.5', 7))\n"
        "try: s.sendto(b'x', ('10.9.0.6', 7))\nexcept OSError as f: print(f.errno)"
    )
    assert int(told.output) == errno.EPERM
    event = told.one(Kind.NET_DENIED)
    assert (event["a0"], event["address"], event["port"]) == (NetHook.SENDMSG, mapped("10.9.0.6"), 7)
    assert [e["result"] for e in told.of(Kind.SEND)] == [1, -errno.EPERM]


def test_raw_sockets_are_refused_and_packets_checked(box: Box) -> None:
    rules(box, False)
    told = box.run(
        IN_A_NAMESPACE
        + "try: socket.socket(type=socket.SOCK_RAW, proto=1)\nexcept OSError as f: print(f.errno)"
    )
    assert int(told.output) == errno.EPERM
    event = told.one(Kind.NET_DENIED)
    assert (event["a0"], event["protocol"]) == (NetHook.SOCK_CREATE, 1)


def test_a_packet_of_the_sandboxs_own_making_is_judged_by_the_address_in_it(box: Box) -> None:
    """Raw IP where the rules allow by default: the call may name another host than the packet (raw(7))."""
    rules(box, True, NetRule.of("10.9.0.7", allow=False, port_low=80, port_high=80, name="no"))
    told = box.run(
        IN_A_NAMESPACE + "s = socket.socket(type=socket.SOCK_RAW, proto=socket.IPPROTO_RAW)\n"
        "def send(inside, port, protocol, said):\n"
        "    head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 40, 1, 0, 64, protocol, 0,\n"
        "        socket.inet_aton('10.9.0.1'), socket.inet_aton(inside))\n"
        "    body = struct.pack('!HHIIHHI', 9, port, 1, 0, 0x5002, 9, 0)\n"
        "    try: s.sendto(head + body, (said, 0)); return 0\n"
        "    except OSError as f: return f.errno\n"
        "print(send('10.9.0.7', 80, 6, '10.9.0.8'), send('10.9.0.7', 80, 17, '10.9.0.8'),\n"
        "      send('10.9.0.7', 81, 6, '10.9.0.8'), send('10.9.0.8', 80, 6, '10.9.0.7'))"
    )
    e = errno.EPERM
    assert [int(word) for word in told.output.split()] == [e, e, 0, 0]
    refused = told.of(Kind.NET_DENIED)
    assert [(one["a0"], one["address"], one["port"], one["protocol"], one["text"]) for one in refused] == [
        (NetHook.EGRESS, mapped("10.9.0.7"), 80, protocol, b"no") for protocol in (TCP, UDP)
    ]


BINDS = """
def take(address, port, type=socket.SOCK_STREAM, family=socket.AF_INET):
    s = socket.socket(family, type)
    try: s.bind((address, port)); return 0
    except OSError as f: return f.errno
"""


def test_binds_by_rule(box: Box) -> None:
    """What may be bound has rules of its own, and what is refused is told with the rule's name."""
    binds = (
        NetRule.of("0.0.0.0", allow=False, port_low=8080, port_high=8080, name="no open door"),
        NetRule.of("127.0.0.0/8", port_low=8000, port_high=8999, protocol=TCP, name="own servers"),
    )
    rules(box, False, default_bind=False, binds=binds)
    told = box.run(
        IN_A_NAMESPACE
        + BINDS
        + "print(take('127.0.0.1', 8080), take('127.0.0.1', 80), take('0.0.0.0', 8080),\n"
        "      take('127.0.0.1', 8080, 2), take('127.0.0.1', 0), take('::ffff:127.0.0.1', 8001, 1, 10),\n"
        "      take('::1', 8001, 1, 10))"
    )
    e = errno.EPERM
    assert [int(word) for word in told.output.split()] == [0, e, e, e, e, 0, e]
    refused = told.of(Kind.NET_DENIED)
    assert [(r["a0"], r["port"], r["text"]) for r in refused] == [
        (NetHook.BIND, 80, b""),
        (NetHook.BIND, 8080, b"no open door"),
        (NetHook.BIND, 8080, b""),
        (NetHook.BIND, 0, b""),
        (NetHook.BIND, 8001, b""),
    ]
    assert (refused[0]["address"], refused[0]["result"]) == (mapped("127.0.0.1"), -e)
    assert [b["result"] for b in told.of(Kind.BIND)] == [0, -e, -e, -e, -e, 0, -e]


def test_without_rules_of_binds_every_bind_is_allowed(box: Box) -> None:
    rules(box, False)
    told = box.run(
        IN_A_NAMESPACE + BINDS + "print(take('0.0.0.0', 0), take('127.0.0.1', 80), take('::', 81, 2, 10))"
    )
    assert told.output.split() == ["0", "0", "0"]


def test_rules_that_cannot_be_kept_leave_the_old_ones_in_force(box: Box) -> None:
    rules(box, False, NetRule.of("10.9.0.7", name="old"))
    too_many = [NetRule.of("10.9.0.0/16", port_low=n, port_high=n, name="port") for n in range(1, 20)]
    with pytest.raises(RuleError, match="at most"):
        rules(box, True, binds=too_many)
    told = box.run(IN_A_NAMESPACE + "print(ask('10.9.0.7'), ask('10.9.0.8'))")
    assert [int(word) for word in told.output.split()] == [0, errno.EPERM]


def test_fast_open_is_stopped_at_the_packet(box: Box) -> None:
    """TCP fast open connects with a send: whatever call it was, its packet does not leave."""
    rules(box, False)
    told = box.run(
        IN_A_NAMESPACE + "s = socket.socket()\n"
        "try: s.sendto(b'x', 0x20000000, ('10.9.0.7', 80)); print(0)\nexcept OSError as f: print(f.errno)\n"
        "os.set_blocking(t, False)\n"
        "try: print(len(os.read(t, 2000)))\nexcept BlockingIOError: print('none')"
    )
    assert told.output.split()[-1] == "none"
    assert {e["address"] for e in told.of(Kind.NET_DENIED)} == {mapped("10.9.0.7")}


def test_what_the_kernel_reports_of_its_own_on_a_link_is_neither_refused_nor_told(box: Box) -> None:
    """Multicast reports: of a network's own making, at a moment that the kernel draws, with options for every
    hop in front of them. The sandbox's first real refusal must be its first told one."""
    rules(box, False)
    told = box.run(
        IN_A_NAMESPACE + "group, s = socket.inet_pton(10, 'ff02::1234'), socket.socket(10, 2)\n"
        "s.setsockopt(41, 20, group + struct.pack('i', socket.if_nametoindex('t0')))  # IPV6_JOIN_GROUP\n"
        "os.set_blocking(t, False); end = time.monotonic() + 10; seen = b''\n"
        "while group not in seen and time.monotonic() < end:\n"
        "    try: seen = os.read(t, 2000)\n"
        "    except BlockingIOError: time.sleep(0.001)\n"
        "print(seen[6], seen[40], seen[48])  # options first, then ICMPv6, a report (RFC 3810, 5.2)"
    )
    assert [int(word) for word in told.output.split()] == [0, 58, 143]
    assert not told.of(Kind.NET_DENIED)


@pytest.mark.parametrize(("kind", "to"), [(143, "fd00::9"), (128, "ff02::16")])
def test_a_forged_report_or_another_message_behind_options_is_refused(box: Box, kind: int, to: str) -> None:
    """Raw sockets are there where the rules allow by default; what they deny stays denied."""
    rules(box, True, NetRule.of("fd00::/16", allow=False), NetRule.of("ff00::/8", allow=False))
    told = box.run(
        IN_A_NAMESPACE + "s = socket.socket(10, socket.SOCK_RAW, 58)\n"
        "own = socket.inet_pton(10, 'fd00::1') + struct.pack('Ii', 64, socket.if_nametoindex('t0'))\n"
        "fcntl.ioctl(s, 0x8916, own)  # SIOCSIFADDR, struct in6_ifreq\n"
        "s.setsockopt(41, 54, bytes([0, 0, 5, 2, 0, 0, 1, 0]))  # IPV6_HOPOPTS: router alert\n"
        f"def send(message=bytes([{kind}] + 23 * [0]), to='{to}', link=socket.if_nametoindex('t0')):\n"
        "    try: s.sendto(message, (to, 0, 0, link))\n"
        "    except OSError as error: return error.errno\n"
        "end, told = time.monotonic() + 10, errno.EADDRNOTAVAIL  # until the address may be used\n"
        "while told == errno.EADDRNOTAVAIL and time.monotonic() < end: told = send()\n"
        "print(told)"
    )
    assert int(told.output) == errno.EPERM
    assert told.of(Kind.NET_DENIED)[-1]["address"] == socket.inet_pton(socket.AF_INET6, to)


def test_sockets_made_before_the_rules_are_stopped_at_the_packet(box: Box) -> None:
    """A socket connected while the phase allowed it may not go on once rules deny it."""
    reader, writer = os.pipe()
    told_fd, tell_fd = os.pipe()
    import threading

    results: list[str] = []

    def run() -> None:
        results.append(
            box.run(
                IN_A_NAMESPACE + "s = socket.socket(type=2); s.connect(('10.9.0.7', 9))\n"
                "os.write(int(sys.argv[2]), b'.'); os.read(int(sys.argv[1]), 1)\n"
                "try: s.send(b'x'); print(0)\nexcept OSError as f: print(f.errno)",
                str(reader),
                str(tell_fd),
                pass_fds=[reader, tell_fd],
            ).output
        )

    child = threading.Thread(target=run)
    child.start()
    os.read(told_fd, 1)
    rules(box, False)
    os.write(writer, b".")
    child.join()
    for fd in (reader, writer, told_fd, tell_fd):
        os.close(fd)
    assert results and int(results[0]) == errno.EPERM


def test_ten_thousand_rules(box: Box) -> None:
    many = [NetRule.of(f"10.{n >> 8}.{n & 255}.0/25", name="many") for n in range(10000)]
    rules(box, False, *many)
    told = box.run(IN_A_NAMESPACE + "print(ask('10.9.5.1'), ask('10.9.5.129'), ask('10.9.255.7'))")
    assert [int(word) for word in told.output.split()] == [0, errno.EPERM, 0]


def test_phases_have_rules_of_their_own(box: Box) -> None:
    box.sensor.set_network(box.slot, Phase.SETUP, False, [])
    told = box.run(IN_A_NAMESPACE + "print(ask('10.9.0.7'))")
    assert int(told.output) == 0
    assert not told.of(Kind.NET_DENIED)


def test_others_below_the_same_parent_are_not_touched(box: Box, sensor: Sensor, parent_cgroup: Path) -> None:
    rules(box, False)
    folder = parent_cgroup / "unwatched"
    folder.mkdir()
    try:
        told = Box(sensor, folder, box.slot).run(IN_A_NAMESPACE + "print(ask('10.9.0.7'))")
        assert int(told.output) == 0
    finally:
        folder.rmdir()
