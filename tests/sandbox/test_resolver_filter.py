"""What the resolver's process may still do once it serves: calls tried inside it, and names looked up."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import dns.message
from test_resolver import run

TRYING = """
import ctypes, errno, mmap, os, signal, socket, sys
from invigilator.sandbox.resolver import process

libc = ctypes.CDLL(None, use_errno=True)
def code(work):
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
def call(name, *arguments):
    ctypes.set_errno(0)
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
def listen():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
async def look(self, name, family):
    here = sys.argv[2]
    tries = {
        "execute": lambda: call("execv", b"/bin/true", (ctypes.c_char_p * 2)(b"true", None)),
        "fork": os.fork,
        "trace": lambda: call("ptrace", 16, os.getppid(), 0, 0),
        "signal": lambda: os.kill(os.getpid(), 0),
        "write": lambda: os.open(here, os.O_WRONLY),
        "create": lambda: os.open(here + ".new", os.O_RDONLY | os.O_CREAT),
        "truncate": lambda: os.open(here, os.O_RDONLY | os.O_TRUNC),
        "append": lambda: os.open(here, os.O_RDONLY | os.O_APPEND),
        "nameless": lambda: os.open(os.path.dirname(here), os.O_TMPFILE | os.O_RDWR),
        "unlink": lambda: os.unlink(here),
        "unix": lambda: socket.socket(socket.AF_UNIX),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "listen": listen,
        "code": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC),
        "namespace": lambda: call("unshare", 0x10000000),
        "limits": lambda: call("prctl", 4, 1, 0, 0, 0),
        "read": lambda: os.close(os.open("/etc/passwd", os.O_RDONLY)),
        "speak": lambda: socket.socket(type=socket.SOCK_DGRAM).close(),
    }
    return [f"{name} {code(work)}" for name, work in tries.items()]
process.Upstream.look = look
process.main()
"""
PASS = ("read", "speak")


def test_a_process_taken_over_executes_nothing_writes_nothing_and_finds_no_neighbours(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text("as it was")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    udp, tcp = socket.socket(type=socket.SOCK_DGRAM), socket.socket()
    with ours, udp, tcp, socket.socket(type=socket.SOCK_DGRAM) as asking:
        udp.bind(("127.0.0.1", 0))
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        command = [sys.executable, "-c", TRYING, str(theirs.fileno()), str(held)]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        try:
            ours.settimeout(60)
            socket.send_fds(ours, [json.dumps({"add": 1}).encode()], [udp.fileno(), tcp.fileno()])
            asking.sendto(dns.message.make_query("a.example", "A").to_wire(), udp.getsockname())
            question = json.loads(ours.recv(1 << 16))
            ours.send(json.dumps({"to": question["n"], "verdict": "look", "addresses": []}).encode())
            found = dict(one.split() for one in json.loads(ours.recv(1 << 16))["found"])
        finally:
            ours.close()
            ended = process.wait(60)
    assert {name: said for name, said in found.items() if said != "EPERM"} == dict.fromkeys(PASS, "done")
    assert len(found) == 18 and ended == 0
    assert held.read_text() == "as it was" and list(tmp_path.iterdir()) == [held]


def test_under_its_filter_it_still_reads_resolv_conf_and_asks_again_over_tcp() -> None:
    script = """
    import struct, tempfile
    del os.environ["INVIGILATOR_NAMESERVERS"]
    def answered(data, cut):
        query = dns.message.from_wire(data)
        response = dns.message.make_response(query)
        name = query.question[0].name
        if cut:
            response.flags |= dns.flags.TC
        else:
            response.answer.append(dns.rrset.from_text(name, 9, "IN", "CNAME", "www.zone.example."))
            response.answer.append(dns.rrset.from_text("www.zone.example.", 9, "IN", "A", "198.41.0.4"))
        return response.to_wire()
    import dns.flags, dns.rrset
    SERVER = ("127.0.0.77", 53)
    udp, tcp = socket.socket(type=socket.SOCK_DGRAM), socket.create_server(SERVER)
    udp.bind(SERVER)
    def datagrams():
        while True:
            data, peer = udp.recvfrom(999)
            udp.sendto(answered(data, True), peer)
    def connections():
        while True:
            connection, _ = tcp.accept()
            stream = connection.makefile("rb")
            data = answered(stream.read(int.from_bytes(stream.read(2), "big")), False)
            connection.sendall(struct.pack("!H", len(data)) + data)
    for work in (datagrams, connections):
        threading.Thread(target=work, daemon=True).start()
    with tempfile.NamedTemporaryFile("w") as conf:
        os.chmod(conf.name, 0o644)
        conf.write("nameserver 127.0.0.77\\n"); conf.flush()
        subprocess.run(["mount", "--bind", conf.name, "/etc/resolv.conf"], check=True)
        box = Box("/proc/self/ns/net")
        code = box.ask("a.zone.example")
        status = Path(f"/proc/{resolver.pid}/status").read_text()
        print(json.dumps({"code": code, "pins": [one[0] for one in box.pins],
                "addresses": len({one[1] for one in box.pins}), "filtered": "Seccomp:\\t2" in status}))
    """
    assert run(textwrap.dedent(script)) == {
        "code": "NOERROR",
        "pins": ["setup", "agent", "verify"],
        "addresses": 1,
        "filtered": True,
    }
