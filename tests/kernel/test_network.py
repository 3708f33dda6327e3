"""Sockets: who was spoken to, and what came of it. All on loopback."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from invigilator.ebpf.events import EventClass, Flag, Kind

from .conftest import Box

MAPPED = b"\0" * 10 + b"\xff\xff"
LOCAL4 = MAPPED + bytes([127, 0, 0, 1])
LOCAL6 = b"\0" * 15 + b"\1"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return int(gone.getsockname()[1])


def test_connect_that_succeeds(box: Box, server: socket.socket) -> None:
    port = server.getsockname()[1]
    told = box.run("socket.create_connection(('127.0.0.1', int(sys.argv[1])))", str(port))
    event = told.one(Kind.CONNECT)
    assert (event["family"], event["protocol"]) == (socket.AF_INET, socket.IPPROTO_TCP)
    assert (event["address"], event["port"], event["result"], event["nr"]) == (LOCAL4, port, 0, 42)
    assert event["class"] == EventClass.NETWORK
    assert event["a0"] != 0
    assert not told.of(Kind.CONNECT_RESULT)


def test_connect_that_is_refused(box: Box) -> None:
    port = closed_port()
    told = box.run("s = socket.socket(); print(s.connect_ex(('127.0.0.1', int(sys.argv[1]))))", str(port))
    event = told.one(Kind.CONNECT)
    assert (event["address"], event["port"]) == (LOCAL4, port)
    assert event["result"] == -errno.ECONNREFUSED == -int(told.output)


@pytest.mark.parametrize("open_port", [True, False])
def test_result_of_a_connect_that_did_not_wait(box: Box, server: socket.socket, open_port: bool) -> None:
    port = server.getsockname()[1] if open_port else closed_port()
    told = box.run(
        "import select\ns = socket.socket(); s.setblocking(False)\n"
        "s.connect_ex(('127.0.0.1', int(sys.argv[1]))); select.select([], [s], [], 5)",
        str(port),
    )
    event = told.one(Kind.CONNECT)
    assert event["result"] == -errno.EINPROGRESS
    result = told.one(Kind.CONNECT_RESULT)
    assert result["a0"] == event["a0"] != 0
    assert result["result"] == (0 if open_port else -errno.ECONNREFUSED)
    assert (result["address"], result["port"], result["pid"]) == (LOCAL4, port, told.pid)
    assert result["seq"] > event["seq"]


def test_connect_over_ipv6_and_mapped(box: Box) -> None:
    told = box.run(
        "s = socket.socket(socket.AF_INET6); s.connect_ex(('::1', 9)); s = socket.socket(socket.AF_INET6)\n"
        "s.connect_ex(('::ffff:127.0.0.1', 9))"
    )
    first, second = told.of(Kind.CONNECT)
    assert (first["family"], first["address"], first["port"]) == (socket.AF_INET6, LOCAL6, 9)
    assert (second["family"], second["address"]) == (socket.AF_INET6, LOCAL4)


def test_connect_to_a_unix_socket_names_its_file(box: Box, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(bytes(tmp_path / "ctl"))
        listening.listen()
        told = box.run(
            "os.chdir(sys.argv[1]); s = socket.socket(socket.AF_UNIX); s.connect('ctl')\n"
            "socket.socket(socket.AF_UNIX).connect_ex('none')\n"
            "socket.socket(socket.AF_UNIX).connect_ex('\\0abs')",
            tmp_path,
        )
        done, failed, abstract = told.of(Kind.CONNECT)
        assert (done["path"], done["path2"], done["family"]) == (
            bytes(tmp_path / "ctl"),
            b"ctl",
            socket.AF_UNIX,
        )
        assert done["ino"] == (tmp_path / "ctl").stat().st_ino
        assert (failed["path"], failed["result"]) == (bytes(tmp_path / "none"), -errno.ENOENT)
        assert (abstract["path2"], abstract["result"]) == (b"\0abs", -errno.ECONNREFUSED)


UNIX_NAMES = {
    "connect, refused": "os.setuid(65534); sys.stdout.write(str(s.connect_ex({0})))",
    "sendto": "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'x', {0})",
    "bind, in use": "try: s.bind({0})\nexcept OSError: pass",
}
"""How a socket's name is said; only a stream's connect that is answered has a peer that tells it."""

ROUNDABOUT = {
    "a folder's descriptor": "f'/proc/self/fd/{os.open(d, os.O_PATH)}/ctl'",
    "link and ..": "d + '/deep/link/../ctl'",
}


@pytest.mark.parametrize("name", sorted(ROUNDABOUT))
@pytest.mark.parametrize("how", sorted(UNIX_NAMES))
def test_a_unix_sockets_name_is_followed_to_its_file(box: Box, tmp_path: Path, how: str, name: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "link").symlink_to("../other")  # short: ext4 keeps a link of 60 bytes elsewhere
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(bytes(tmp_path / "ctl"))
        (tmp_path / "ctl").chmod(0o600)
        doing = UNIX_NAMES[how].format("name")
        told = box.run(
            f"d = sys.argv[1]; name = {ROUNDABOUT[name]}; s = socket.socket(socket.AF_UNIX)\n{doing}",
            tmp_path,
        )
    kind = {"connect, refused": Kind.CONNECT, "sendto": Kind.SEND, "bind, in use": Kind.BIND}[how]
    event = told.one(kind)
    assert (event["path"], event["ino"]) == (bytes(tmp_path / "ctl"), (tmp_path / "ctl").stat().st_ino)
    assert not event["flags"] & Flag.PATH_USER
    assert event["path2"].endswith(b"/ctl") and event["path2"] != event["path"]


def test_a_unix_sockets_name_ends_where_the_caller_says(box: Box, tmp_path: Path) -> None:
    """The kernel takes so many bytes as it is told; what follows them in memory is no part of the name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(bytes(tmp_path / "ctl"))
        told = box.run(
            "name = os.fsencode(sys.argv[1]) + b'/ctl'\n"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            "a = struct.pack('H', socket.AF_UNIX) + name + b'-and-more'\n"
            "assert call(44, s.fileno(), b'x', 1, 0, a, 2 + len(name)) == 1",
            tmp_path,
        )
    event = told.one(Kind.SEND)
    assert (event["path"], event["path2"]) == (bytes(tmp_path / "ctl"), bytes(tmp_path / "ctl"))
    assert event["ino"] == (tmp_path / "ctl").stat().st_ino


SENDS = {
    "sendto": "s.sendto(b'hello', ('127.0.0.1', 9))",
    "sendmsg": "s.sendmsg([b'hello'], [], 0, ('127.0.0.1', 9))",
}


@pytest.mark.parametrize("how", sorted(SENDS))
def test_datagram_names_its_destination(box: Box, how: str) -> None:
    told = box.run(f"s = socket.socket(type=socket.SOCK_DGRAM); {SENDS[how]}")
    event = told.one(Kind.SEND)
    assert (event["address"], event["port"], event["protocol"]) == (LOCAL4, 9, socket.IPPROTO_UDP)
    assert (event["a0"], event["result"]) == (5, 5)


QUERY = (
    "q = struct.pack('>HHHHHH', 7, 0x100, 1, 0, 0, 0)\n"
    "q += b'\\3www\\7example\\3org\\0' + struct.pack('>HH', 28, 1)\n"
    "s = socket.socket(type=socket.SOCK_DGRAM)\n"
)
ASKS = {
    "sendto": "s.sendto(q, ('127.0.0.1', 53))",
    "send on a connected socket": "s.connect(('127.0.0.1', 53)); s.send(q)",
    "write on a connected socket": "s.connect(('127.0.0.1', 53)); os.write(s.fileno(), q)",
    "sendmsg": "s.sendmsg([q], [], 0, ('127.0.0.1', 53))",
    "sendmmsg": (
        "s.connect(('127.0.0.1', 53)); b = ctypes.create_string_buffer(q, len(q))\n"
        "v = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(b), len(q)))\n"
        "m = struct.pack('QIIQQQQiI', 0, 0, 0, ctypes.addressof(v), 1, 0, 0, 0, 0)\n"
        "m += bytes(64 - len(m)); call(307, s.fileno(), m, 1, 0)"
    ),
}


@pytest.mark.parametrize("how", sorted(ASKS))
def test_dns_name_asked_for(box: Box, how: str) -> None:
    told = box.run(QUERY + ASKS[how])
    event = told.one(Kind.DNS)
    assert (event["text"], event["a0"]) == (b"www.example.org", 28)
    assert (event["address"], event["port"], event["protocol"]) == (LOCAL4, 53, socket.IPPROTO_UDP)


OVER_TCP = {
    "send": "c.sendall(p + q)",
    "write": "os.write(c.fileno(), p + q)",
    "the prefix sent by itself": "c.send(p); c.send(q)",
    "sendmsg in four parts": "c.sendmsg([p[:1], p[1:] + q[:5], q[5:20], q[20:]])",
    "writev, the prefix by itself": "os.writev(c.fileno(), [p, q])",
    "sendmsg, the prefix by itself": "c.sendmsg([p, q])",
}


@pytest.mark.parametrize("how", sorted(OVER_TCP))
def test_dns_name_asked_for_over_tcp(box: Box, how: str) -> None:
    told = box.run(
        "call(272, 0x40000000); import fcntl\n"  # a network of its own: port 53 may be taken here
        "r = struct.pack('16sH14x', b'lo', 1); fcntl.ioctl(socket.socket(), 0x8914, r)\n"
        + QUERY
        + "l = socket.create_server(('127.0.0.1', 53)); c = socket.create_connection(('127.0.0.1', 53))\n"
        + "p = struct.pack('>H', len(q))\n"
        + OVER_TCP[how]
    )
    event = told.one(Kind.DNS)
    assert (event["text"], event["a0"]) == (b"www.example.org", 28)
    assert (event["address"], event["port"], event["protocol"]) == (LOCAL4, 53, socket.IPPROTO_TCP)


def test_dns_name_asked_for_over_ipv6(box: Box) -> None:
    told = box.run(QUERY + "s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(q, ('::1', 53))")
    event = told.one(Kind.DNS)
    assert (event["text"], event["address"], event["port"]) == (b"www.example.org", LOCAL6, 53)


IN_PARTS = {
    "two": "[q[:14], q[14:]]",
    "four, one of them empty": "[q[:3], b'', q[3:20], q[20:]]",
    "a byte, and the rest": "[q[:1], q[1:]]",
}


@pytest.mark.parametrize("how", sorted(IN_PARTS))
def test_a_query_in_parts_of_its_own_making_tells_its_name(box: Box, how: str) -> None:
    told = box.run(QUERY + f"s.sendmsg({IN_PARTS[how]}, [], 0, ('127.0.0.1', 53))")
    event = told.one(Kind.SEND)
    assert (event["address"], event["port"], event["protocol"]) == (LOCAL4, 53, socket.IPPROTO_UDP)
    assert event["a0"] == event["result"] == 33
    assert told.one(Kind.DNS)["text"] == b"www.example.org"


def test_a_query_in_parts_written_to_a_connected_socket_tells_its_name(box: Box) -> None:
    told = box.run(QUERY + "s.connect(('127.0.0.1', 53)); os.writev(s.fileno(), [q[:2], q[2:15], q[15:]])")
    assert told.one(Kind.DNS)["text"] == b"www.example.org"


def test_a_query_in_more_parts_than_are_read_still_names_the_server(box: Box) -> None:
    """Four parts are read; whom it was sent to is known however it is cut."""
    told = box.run(QUERY + "s.sendmsg([q[n:n + 1] for n in range(33)], [], 0, ('127.0.0.1', 53))")
    assert told.one(Kind.SEND)["port"] == 53 and not told.of(Kind.DNS)


def test_every_message_of_one_sendmmsg_tells_its_name(box: Box) -> None:
    told = box.run(
        QUERY + "s.connect(('127.0.0.1', 53)); keep = []\n"
        "def message(n):\n"
        "    t = q.replace(b'www', b'%03d' % n); b = ctypes.create_string_buffer(t, len(t))\n"
        "    v = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(b), len(t)))\n"
        "    keep.extend((b, v)); m = struct.pack('QIIQQQQiI', 0, 0, 0, ctypes.addressof(v), 1, 0, 0, 0, 0)\n"
        "    return m + bytes(64 - len(m))\n"
        "print(call(307, s.fileno(), b''.join(map(message, range(200))), 200, 0))"
    )
    names = [e["text"] for e in told.of(Kind.DNS)]
    # A port that nobody holds may refuse later ones: what the kernel took is what is told.
    assert names == [b"%03d.example.org" % n for n in range(max(int(told.output), 1))]


def test_dns_of_garbage_and_of_the_longest_name(box: Box) -> None:
    told = box.run(
        QUERY + "s.connect(('127.0.0.1', 53))\n"
        "try: s.send(bytes(12) + b'\\xff' * 300)\nexcept OSError: pass\n"
        "n = (b'\\x3f' + b'a' * 63) * 3 + b'\\x3d' + b'b' * 61 + b'\\0'\n"
        "try: s.send(q[:12] + n + q[-4:])\nexcept OSError: s.send(q[:12] + n + q[-4:])"
    )
    names = {e["text"] for e in told.of(Kind.DNS)}
    assert names == {b".".join([b"a" * 63] * 3 + [b"b" * 61])}


def test_bind_listen_accept(box: Box) -> None:
    told = box.run(
        "l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(5); print(l.getsockname()[1])\n"
        "c = socket.create_connection(l.getsockname()); l.accept(); print(c.getsockname()[1])"
    )
    port, peer = map(int, told.output.split())
    bind, listen, accept = told.one(Kind.BIND), told.one(Kind.LISTEN), told.one(Kind.ACCEPT)
    assert (bind["address"], bind["port"], bind["result"]) == (LOCAL4, 0, 0)
    assert (listen["a0"], listen["port"], listen["protocol"]) == (5, port, socket.IPPROTO_TCP)
    assert (accept["address"], accept["port"], accept["a0"]) == (LOCAL4, peer, port)


def test_raw_and_packet_sockets_only(box: Box) -> None:
    told = box.run(
        "socket.socket(); socket.socket(type=socket.SOCK_DGRAM)\n"
        "socket.socket(type=socket.SOCK_RAW, proto=1)\n"
        "socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 8); os.setuid(65534)\n"
        "try: socket.socket(type=socket.SOCK_RAW, proto=1)\nexcept OSError: pass"
    )
    raw, packet, refused = told.of(Kind.SOCKET)
    assert (raw["a0"], raw["a1"] & 15, raw["protocol"]) == (socket.AF_INET, socket.SOCK_RAW, 1)
    assert (packet["family"], packet["a1"] & 15) == (socket.AF_PACKET, socket.SOCK_DGRAM)
    assert refused["result"] == -errno.EPERM
