"""A sandbox asks for names: what is allowed is reached, and nothing else by any way round."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from invigilator.ebpf.events import NetHook
from invigilator.sandbox.resolver.upstream import VARIABLE

HOST = """
mount -t tmpfs run /run
ip link set lo up
ip link add up0 type veth peer name up1; ip link set up1 up
ip addr add 198.51.100.1/24 dev up0; ip addr add 198.51.100.2/24 dev up0; ip link set up0 up
ip route add default via 198.51.100.9
python3 "$FOLDER/upstream.py" "$FOLDER" & server=$!
while [ ! -e "$FOLDER/ready" ]; do sleep 0.05; done
"$@"; code=$?
kill $server
exit $code
"""
UPSTREAM = """
import socket, struct, sys, threading
from pathlib import Path
folder, asked = Path(sys.argv[1]), {}
def spelled(data):
    labels, at = [], 12
    while data[at]:
        labels.append(data[at + 1:at + 1 + data[at]].decode("latin1"))
        at += 1 + data[at]
    return ".".join(labels), int.from_bytes(data[at + 1:at + 3], "big"), at + 5
def addresses(name):
    asked[name] = asked.get(name, 0) + 1
    if name.startswith("inside"):
        return ["169.254.169.254"]
    if name.startswith("stay"):
        return ["198.51.100.2"]
    # Each time another: who owns the name leads it elsewhere.
    return ["198.51.100.1" if asked[name] == 1 else "198.51.100.2"]
server = socket.socket(type=socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 5399))
def web(address, port):
    listening = socket.create_server((address, port))
    while True:
        listening.accept()[0].sendall(address.encode())
for address in ("198.51.100.1", "198.51.100.2"):
    for port in (8080, 8081):
        threading.Thread(target=web, args=(address, port), daemon=True).start()
(folder / "ready").touch()
while True:
    data, peer = server.recvfrom(999)
    name, kind, end = spelled(data)
    with (folder / "asked").open("a") as log:
        log.write(f"{kind} {name}\\n")
    gone = name.startswith("gone")
    found = addresses(name) if kind == 1 and not gone else []
    alias = b"\\xc0\\x0c\\0\\x05\\0\\1\\0\\0\\0\\1\\0\\x06\\x03www\\xc0\\x0c"
    alias = alias if found and "alias" in name else b""
    owner = struct.pack("!H", 0xC000 + end + 12) if alias else b"\\xc0\\x0c"
    records = [owner + struct.pack("!HHIH", 1, 1, 1, 4) + socket.inet_aton(one) for one in found]
    counts = struct.pack("!HHHH", 1, len(records) + bool(alias), 0, 0)
    head = data[:2] + bytes([0x81, 0x83 if gone else 0x80]) + counts
    server.sendto(head + data[12:end] + alias + b"".join(records), peer)
"""
ASKING = """
import json, socket, struct, sys
SERVER = ("127.0.0.53", 53)
def question(name, kind=1, tail=b""):
    labels = name
    if isinstance(name, str):
        labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return b"\\x07\\x07\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + labels + b"\\0" + struct.pack("!HH", kind, 1) + tail
def told(data):
    count, at = int.from_bytes(data[6:8], "big"), data.find(b"\\0", 12) + 5
    found = []
    for _ in range(count):
        size = int.from_bytes(data[at + 10:at + 12], "big")
        found.append(socket.inet_ntoa(data[at + 12:at + 16]) if size == 4 else "other")
        at += 12 + size
    return {"code": data[3] & 15, "found": found}
def udp(name, kind=1, server=SERVER, data=None):
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        try:
            s.sendto(data or question(name, kind), server)
            return told(s.recv(999))
        except OSError as error:
            return {"error": type(error).__name__}
def tcp(*names):
    with socket.create_connection(SERVER, 20) as s:
        for name in names:
            data = question(name)
            s.sendall(struct.pack("!H", len(data)) + data)
        stream = s.makefile("rb")
        return [told(stream.read(int.from_bytes(stream.read(2), "big"))) for _ in names]
def web(host, port=8080):
    try:
        with socket.create_connection((host, port), 20) as s:
            return s.recv(99).decode()
    except OSError as error:
        return type(error).__name__
"""


class Asked:
    """One rollout, whose command asked."""

    def __init__(self, said: dict[str, Any], report: dict[str, Any], asked: list[str]) -> None:
        self.said, self.report, self.asked = said, report, asked


@pytest.fixture
def ask(own_node, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Run a script in a sandbox whose policy allows names; the upstream is the test's own."""

    def run(script: str, egress: str, *options: str | Path) -> Asked:
        (tmp_path / "upstream.py").write_text(UPSTREAM)
        (tmp_path / "policy.yaml").write_text(
            f"version: 1\nname: names\nnetwork:\n  default_action: deny\n  egress:\n{egress}"
        )
        report = tmp_path / "report.json"
        given = ("--policy", tmp_path / "policy.yaml", "--report", report, *options)
        asking = own_node.command("run", *given, "--", "python3", "-c", ASKING + script)
        command = ["unshare", "--net", "--mount", "bash", "-c", HOST, "host", *asking]
        environment = own_node.environment({"FOLDER": str(tmp_path), VARIABLE: "127.0.0.1:5399"})
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        log = tmp_path / "asked"
        asked = log.read_text().splitlines() if log.exists() else []
        return Asked(json.loads(done.stdout), json.loads(report.read_text()), asked)

    return run


ZONE = '  - {name: zone, target: "*.zone.example", ports: [8080], private: true}\n'
PUBLIC = '  - {name: public, target: "*.public.example", ports: [8080]}\n'


def test_allowed_names_are_reached_and_other_ways_are_refused_and_told(own_node, ask) -> None:  # type: ignore[no-untyped-def]
    found = ask(
        """
odd = b"\\x03a\\xff\\0\\x04zone\\x07example"
said = {
    "conf": open("/etc/resolv.conf").read(),
    "other": udp("other.example"),
    "before": web("198.51.100.1"),
    "name": web("a.zone.example"),
    "port": web("198.51.100.1", 8081),
    "neighbour": web("198.51.100.2"),
    "again": [udp("A.Zone.Example"), udp("a.zone.example", 28)],
    "tcp": tcp("a.zone.example", "other.example", "b.zone.example"),
    "alias": udp("alias.zone.example"),
    "gone": udp("gone.zone.example"),
    "inside": udp("inside.public.example"),
    "odd": udp(odd),
    "text": udp("a.zone.example", 16),
    "damaged": udp("", data=b"\\x07\\x07\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\xc0\\x0c"),
    "elsewhere": udp("a.zone.example", server=("8.8.8.8", 53)),
    "mapped": web("::ffff:198.51.100.2"),
}
print(json.dumps(said))
""",
        ZONE + PUBLIC,
        "--rollout",
        "names",
    )
    said, refused = found.said, {"code": 5, "found": []}
    first = {"code": 0, "found": ["198.51.100.1"]}
    assert said["conf"] == "nameserver 127.0.0.53\n"
    assert said["other"] == said["odd"] == said["inside"] == refused
    assert said["before"] == "PermissionError" and said["name"] == "198.51.100.1"
    assert said["port"] == said["neighbour"] == said["mapped"] == "PermissionError"
    # The name leads elsewhere by now: here it does not.
    assert said["again"] == [first, {"code": 0, "found": []}]
    assert said["tcp"] == [first, refused, first]
    assert said["alias"] == first and said["gone"] == {"code": 3, "found": []}
    assert said["text"] == {"code": 0, "found": []} and said["damaged"]["code"] == 1
    assert said["elsewhere"] == {"error": "PermissionError"}
    names = {line.partition(" ")[2] for line in found.asked}
    assert names == {f"{n}.zone.example" for n in ("a", "b", "alias", "gone")} | {"inside.public.example"}
    assert found.report["enforcement"]["names"] == found.report["enforcement"]["network"] == "enforce"
    query = (
        "SELECT text, path2, a0, port, address FROM events_readable "
        "WHERE rollout_id = 'names' AND kind = 'net_denied' ORDER BY seq"
    )
    asked = own_node.guard("sql", "--json", query)
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    by_name = [(one["path2"], one["text"]) for one in told if int(one["a0"]) == NetHook.NAME]
    assert by_name == [
        ("other.example", "default_action"), ("inside.public.example", "public"),
        ("a\\x5c255\\x5c000.zone.example", "default_action"),
    ]  # fmt: skip
    assert any("8.8.8.8" in one["address"] and int(one["port"]) == 53 for one in told)
    assert {one["outcome"] for one in found.report["incidents"]} <= {"denied"}
