"""Another policy for a rollout that runs, with rules by name: what was looked up before and after."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from invigilator.sandbox.resolver.upstream import VARIABLE

HOST = """
mount -t tmpfs run /run
ip link set lo up
ip link add up0 type veth peer name up1; ip link set up1 up
for host in 1 2 3; do ip addr add 198.51.100.$host/24 dev up0; done
ip link set up0 up
ip route add default via 198.51.100.9
"$PYTHON" "$FOLDER/upstream.py" "$FOLDER" & server=$!
while [ ! -e "$FOLDER/ready" ]; do sleep 0.05; done
"$@"; code=$?
kill $server
exit $code
"""
UPSTREAM = """
import socket, sys, threading
from pathlib import Path
import dns.message, dns.rrset
ADDRESSES = {"zone": "198.51.100.1", "keep": "198.51.100.2", "other": "198.51.100.3"}
def echo(connection):
    while data := connection.recv(99):
        connection.sendall(data)
def web(address):
    listening = socket.create_server((address, 8080))
    while True:
        threading.Thread(target=echo, args=(listening.accept()[0],), daemon=True).start()
for address in ADDRESSES.values():
    threading.Thread(target=web, args=(address,), daemon=True).start()
server = socket.socket(type=socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 5399))
(Path(sys.argv[1]) / "ready").touch()
asked = set()
while True:
    data, peer = server.recvfrom(999)
    query = dns.message.from_wire(data)
    response, (question,) = dns.message.make_response(query), query.question
    # The first answer leads to the zone's own address, those after it to nowhere.
    name = question.name.to_text()
    where = "198.51.100.77" if name in asked else ADDRESSES[name.split(".")[1]]
    if question.rdtype == 1:
        asked.add(name)
        response.answer.append(dns.rrset.from_text(question.name, 9, "IN", "A", where))
    server.sendto(response.to_wire(), peer)
"""
ASK = """
import json, os, socket, time
NAMES = ("a.zone.example", "b.keep.example", "c.other.example")
ADDRESSES = ("198.51.100.1", "198.51.100.2", "198.51.100.3")
def speak(one, patience_s=20):
    try:
        one.settimeout(patience_s)
        one.sendall(b"word")
        return one.recv(9).decode()
    except OSError as error:
        return type(error).__name__
def ask(where):
    try:
        with socket.create_connection((where, 8080), 20) as one:
            return speak(one)
    except OSError as error:
        return type(error).__name__
def stage(number):
    open(f"/workspace/done{number}", "w").close()
    while not os.path.exists(f"/workspace/go{number}"):
        time.sleep(0.02)
def addresses():
    return [ask(where) for where in ADDRESSES]
def all_of_them():
    return [[ask(name) for name in NAMES], addresses()]
said = [all_of_them()]
stage(0)
said.append(all_of_them())
one, two = (socket.create_connection((where, 8080)) for where in ADDRESSES[:2])
stage(1)
said.append(addresses())
# What waits for an answer that is not to come may give up early.
said.append([speak(two), speak(one, 0.5)])
said.append(all_of_them())
stage(2)
said.append([addresses(), speak(two, 0.5)])
said.append(all_of_them())
print(json.dumps(said))
"""
DRIVER = """
import json, sys, threading, time
from invigilator import SyncSandbox
from invigilator.profiles import library
ask, first, *policies = sys.argv[1:]
found = {"changes": []}
with SyncSandbox.create(policy=library.load(first), rollout_id="names") as box:
    box.phase("agent")
    asking = threading.Thread(target=lambda: found.update(asked=box.exec(["python3", "-c", ask])))
    asking.start()
    for number, policy in enumerate(policies):
        while box.exec(f"test -e /workspace/done{number}").exit_code:
            time.sleep(0.02)
        found["changes"].append(box.change_policy(library.load(policy)).tiers["network"])
        box.write_file(f"/workspace/go{number}", b"")
    asking.join()
    asked = found["asked"]
    assert asked.exit_code == 0, asked.stderr
    found["asked"] = json.loads(asked.stdout)
    found["report"] = box.verdict().model_dump(mode="json")
print(json.dumps(found))
"""
ZONE, KEEP, OTHER = "*.zone.example", "*.keep.example", "*.other.example"
YES, NAME, NO, SILENT = "word", "gaierror", "PermissionError", "TimeoutError"


def policy(folder: Path, number: int, targets: list[str]) -> Path:
    rules = [
        {"name": f"r{place}", "target": target, "ports": [8080], "private": True}
        for place, target in enumerate(targets)
    ]
    network = json.dumps({"default_action": "deny", "egress": rules})
    path = folder / f"{number}.yaml"
    path.write_text(f"version: 1\nname: p{number}\nnetwork: {network}\n")
    return path


def test_a_running_process_loses_names_whose_rules_went_keeps_others_and_gets_new_ones(
    own_node, tmp_path: Path
) -> None:
    (tmp_path / "upstream.py").write_text(UPSTREAM)
    rules = [[], [ZONE, KEEP], [KEEP, OTHER], ["198.51.100.3"]]
    policies = [policy(tmp_path, number, targets) for number, targets in enumerate(rules)]
    words = [sys.executable, "-c", DRIVER, ASK, *policies]
    command = ["unshare", "--net", "--mount", "bash", "-c", HOST, "host", *words]
    settings = {"FOLDER": str(tmp_path), "PYTHON": sys.executable, VARIABLE: "127.0.0.1:5399"}
    done = subprocess.run(
        command,
        env=own_node.environment(settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    found: dict[str, Any] = json.loads(done.stdout)
    none, zones, at_once, held, others, last, plain = found["asked"]
    assert none == [[NAME] * 3, [NO] * 3]
    # It was made without a link and a resolver: its process finds both.
    assert zones == [[YES, YES, NAME], [YES, YES, NO]]
    # What was looked up and has no rule any more is dropped, of open connections too; what has one stays,
    # though the name leads elsewhere by now.
    assert at_once == [NO, YES, NO] and held == [YES, SILENT]
    assert others == [[NAME, YES, YES], [NO, YES, YES]]
    assert last == [[NO, NO, YES], SILENT] and plain == [[NAME] * 3, [NO, NO, YES]]
    assert found["changes"] == ["changed"] * 3
    assert [one["name"] for one in found["report"]["policy_changes"]] == ["p1", "p2", "p3"]
    assert found["report"]["enforcement"]["names"] == "enforce"
