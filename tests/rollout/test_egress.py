"""What one egress rule lets out: that service, by its name, over TCP or UDP, and nothing else."""

from __future__ import annotations

import errno
import json
import subprocess
from pathlib import Path

import pytest

from invigilator.ebpf.events import NetHook

HOST = """
mount -t tmpfs run /run
mount --bind "$FOLDER/hosts" /etc/hosts
ip link set lo up
ip link add up0 type veth peer name up1; ip link set up1 up
ip addr add 198.51.100.1/24 dev up0; ip addr add 198.51.100.2/24 dev up0; ip link set up0 up
python3 "$FOLDER/services.py" & services=$!
while [ ! -e "$FOLDER/ready" ]; do sleep 0.05; done
"$@"; code=$?
kill $services
exit $code
"""
SERVICES = """
import socket, sys, threading
from pathlib import Path
def tcp(server):
    while True:
        server.accept()[0].sendall(b"served")
def udp(server):
    while True:
        _, peer = server.recvfrom(99)
        server.sendto(b"served", peer)
for address in ("198.51.100.1", "198.51.100.2"):
    for port in (8080, 8081):
        threading.Thread(target=tcp, args=[socket.create_server((address, port))]).start()
        server = socket.socket(type=socket.SOCK_DGRAM)
        server.bind((address, port))
        threading.Thread(target=udp, args=[server]).start()
Path(sys.argv[0]).with_name("ready").touch()
"""
ASK = """
import json, socket
def ask(kind, host, port):
    try:
        with socket.socket(type=kind) as s:
            s.settimeout(1)
            s.connect((host, port))
            if kind == socket.SOCK_DGRAM:
                s.send(b"?")
            return s.recv(9).decode()
    except OSError as error:
        return type(error).__name__
found = {"name": socket.gethostbyname("files.test")}
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for host in ("files.test", "198.51.100.1", "198.51.100.2"):
        for port in (8080, 8081):
            found[f"{kind.name} {host} {port}"] = ask(kind, host, port)
print(json.dumps(found))
"""


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_an_allowed_service_answers_and_nothing_else_does(own_node, tmp_path: Path, protocol: str) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n198.51.100.1 files.test\n")
    (tmp_path / "services.py").write_text(SERVICES)
    (tmp_path / "policy.yaml").write_text(
        "version: 1\nname: one-service\nextends: swe-task\nnetwork:\n  default_action: deny\n  egress:\n"
        f"  - {{name: files, target: files.test, ports: [8080], protocol: {protocol}, private: true}}\n"
        "phases: {setup: {network: {default_action: deny, egress: []}}}\n"
    )
    report = tmp_path / "report.json"
    options = ("--policy", tmp_path / "policy.yaml", "--report", report)
    asking = own_node.command("run", *options, "--", "python3", "-c", ASK)
    command = ["unshare", "--net", "--mount", "bash", "-c", HOST, "host", *asking]
    environment = own_node.environment({"FOLDER": str(tmp_path)})
    done = subprocess.run(command, env=environment, capture_output=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("name") == "198.51.100.1"
    kind = {"tcp": "SOCK_STREAM", "udp": "SOCK_DGRAM"}[protocol]
    served = {asked for asked, answer in found.items() if answer == "served"}
    assert served == {f"{kind} files.test 8080", f"{kind} 198.51.100.1 8080"}
    told = json.loads(report.read_text())
    assert told["enforcement"]["network"] == "enforce"
    assert {(one["kind"], one["outcome"]) for one in told["incidents"]} >= {("egress_violation", "denied")}


LISTEN = """
import json, socket
def listen(family, address, port, kind=socket.SOCK_STREAM):
    try:
        with socket.socket(family, kind) as s:
            s.bind((address, port))
            if kind == socket.SOCK_STREAM:
                s.listen()
            return "taken"
    except OSError as error:
        return error.strerror
print(json.dumps({
    "kept": listen(socket.AF_INET, "127.0.0.1", 8080),
    "all": listen(socket.AF_INET, "0.0.0.0", 8080),
    "six": listen(socket.AF_INET6, "::", 8080),
    "udp": listen(socket.AF_INET, "127.0.0.1", 8080, socket.SOCK_DGRAM),
    "other": listen(socket.AF_INET, "0.0.0.0", 8081),
    "chosen": listen(socket.AF_INET, "127.0.0.1", 0),
}))
"""


def test_a_refused_port_is_not_taken_and_the_refusal_names_the_rule(own_node, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "version: 1\nname: own-ports\nextends: no-network\nnetwork:\n  bind:\n"
        "  - {name: local-server, addresses: [127.0.0.1], ports: [8080]}\n"
        "  - {name: service-port, action: deny, ports: [8080], protocol: any}\n"
    )
    rollout = "own-ports"
    options = ("--policy", tmp_path / "policy.yaml", "--rollout", rollout)
    run = own_node.run(*options, command=["python3", "-c", LISTEN])
    assert run.code == 0, run.said
    refused = "Operation not permitted"
    assert json.loads(run.stdout) == {
        "kept": "taken", "all": refused, "six": refused, "udp": refused, "other": "taken", "chosen": "taken",
    }  # fmt: skip
    assert run.report is not None and run.report["incidents"] == []
    query = (
        "SELECT text, port, protocol, result, a0 FROM events_readable "
        f"WHERE rollout_id = '{rollout}' AND kind = 'net_denied' ORDER BY seq"
    )
    asked = own_node.guard("sql", "--json", query)
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert [(one["text"], one["port"], one["protocol"]) for one in told] == [
        ("service-port", 8080, protocol) for protocol in ("tcp", "tcp", "udp")
    ]
    assert {(int(one["result"]), int(one["a0"])) for one in told} == {(-errno.EPERM, NetHook.BIND)}
