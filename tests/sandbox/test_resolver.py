"""The resolver's process: floods, damage and its own end, in network namespaces of the test's."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

from invigilator.profiles.names import BELOW_WILDCARD_MAX_NAMES
from invigilator.sandbox.resolver.process import UID

HOST = """
import ctypes, json, os, socket, subprocess, sys, threading, time
import dns.message, dns.rcode
from pathlib import Path
os.environ["INVIGILATOR_NAMESERVERS"] = "127.0.0.1:5399"
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
from invigilator.profiles.policy import EgressRule, Network, Policy
from invigilator.sandbox.base import NameEvents
from invigilator.sandbox.resolver.answers import Answers
from invigilator.sandbox.resolver.keeper import Resolver

asked, holds = [], threading.Event()
holds.set()
def upstream():
    server = socket.socket(type=socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 5399))
    while True:
        data, peer = server.recvfrom(999)
        holds.wait()
        query = dns.message.from_wire(data)
        asked.append(query.question[0].name.to_text())
        response = dns.message.make_response(query)
        count = 600 if asked[-1].startswith("many") else 1
        found = [f"198.41.{one >> 8}.{one & 255}" for one in range(4, 4 + count)]
        response.answer.append(dns.rrset.from_text(query.question[0].name, 9, "IN", "A", *found))
        server.sendto(response.to_wire(), peer)
threading.Thread(target=upstream, daemon=True).start()

class Box:
    '''A network namespace with a resolver on its loopback, and one who asks there.'''
    def __init__(self, namespace):
        self.pins, self.refused, self.limits = [], [], []
        rule = EgressRule(name="zone", target="*.zone.example")
        self.answers = Answers(Policy(name="t", network=Network(egress=[rule])), {}, lambda *_: None)
        self.answers.events = NameEvents(
            lambda *one: self.pins.append(one), lambda *one: self.refused.append(one), self.limits.append)
        self.answers.phase = "agent"
        self.namespace = os.open(namespace, os.O_RDONLY)
        self.number = resolver.serve(self.namespace, self.answers)
    def within(self, work):
        '''Done in a thread that is in the namespace.'''
        found = []
        def run():
            assert ctypes.CDLL(None).setns(self.namespace, 0x40000000) == 0
            found.append(work())
        thread = threading.Thread(target=run)
        thread.start(); thread.join()
        return found[0]
    def ask(self, name):
        '''Asked again until it is answered, as resolvers do.'''
        data = dns.message.make_query(name, "A").to_wire()
        def work():
            with socket.socket(type=socket.SOCK_DGRAM) as s:
                s.settimeout(1)
                while True:
                    try:
                        s.sendto(data, ("127.0.0.53", 53))
                        return dns.rcode.to_text(dns.message.from_wire(s.recv(999)).rcode())
                    except TimeoutError:
                        pass
        return self.within(work)
    def flood(self, count, data=dns.message.make_query("a.zone.example", "A").to_wire()):
        def work():
            with socket.socket(type=socket.SOCK_DGRAM) as s:
                for _ in range(count):
                    s.sendto(data, ("127.0.0.53", 53))
        self.within(work)

def other_namespace():
    child = subprocess.Popen(["unshare", "-n", "sh", "-c", "ip link set lo up && echo && exec sleep 99"],
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    return child

resolver = Resolver()
"""


def run(script: str) -> Any:
    """What a script in a network and mount namespace of its own says."""
    whole = HOST + textwrap.dedent(script) + "\nresolver.close()\n"
    command = ["unshare", "-n", "-m", sys.executable, "-c", whole]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_wildcard_is_no_tunnel_and_a_flood_is_only_its_senders() -> None:
    most = BELOW_WILDCARD_MAX_NAMES
    said = run(
        f"""
        child = other_namespace()
        one, two = Box("/proc/self/ns/net"), Box(f"/proc/{{child.pid}}/ns/net")
        while not one.limits:
            one.flood(500)
        meanwhile = two.ask("b.zone.example")
        codes = [two.ask(f"n{{number}}.zone.example") for number in range({most})]
        print(json.dumps({{
            "meanwhile": meanwhile, "codes": [codes[:-1].count("NOERROR"), codes[-1]],
            "long": one.ask("x" * 60 + ".yyyyy.zone.example"), "known": two.ask("n0.zone.example"),
            "names": len(set(asked)), "refused": [one.refused, two.refused],
            "limits": [[hit.limit for hit in one.limits],
                       [hit.maximum for hit in two.limits if hit.limit == "names"]],
        }}))
        child.kill(); child.wait()
        """
    )
    long = f"{'x' * 60}.yyyyy.zone.example"
    assert said == {
        "meanwhile": "NOERROR", "codes": [most - 1, "REFUSED"], "long": "REFUSED", "known": "NOERROR",
        "names": most + 1,
        "refused": [[["agent", long, "zone"]], [["agent", f"n{most - 1}.zone.example", "zone"]]],
        "limits": [["questions"], [most]],
    }  # fmt: skip


def test_a_name_with_very_many_addresses_ends_no_process() -> None:
    said = run(
        """
        box = Box("/proc/self/ns/net")
        def ask(name):
            while (code := box.ask(name)) == "SERVFAIL":  # no answer in time: a slow machine
                pass
            return code
        before = (ask("a.zone.example"), resolver.pid)
        many = ask("many.zone.example")
        after = (ask("b.zone.example"), resolver.pid)
        print(json.dumps({"before": before, "many": many, "after": after}))
        """
    )
    assert said["many"] == "NOERROR" and said["after"] == said["before"]


def test_a_process_that_is_killed_is_started_again_and_has_no_rights() -> None:
    said = run(
        """
        box = Box("/proc/self/ns/net")
        first = box.ask("a.zone.example")
        status = dict(line.split(":\\t") for line in
                      Path(f"/proc/{resolver.pid}/status").read_text().splitlines() if ":\\t" in line)
        before = resolver.pid
        os.kill(before, 9)
        again = box.ask("b.zone.example")
        print(json.dumps({
            "answers": [first, again, box.ask("a.zone.example")], "asked": sorted(set(asked)),
            "ids": sorted(set((status["Uid"] + "\\t" + status["Gid"]).split())),
            "groups": status["Groups"].strip(), "new": resolver.pid != before,
            "rights": int(status["CapEff"], 16) | int(status["CapPrm"], 16), "no_new": status["NoNewPrivs"],
        }))
        """
    )
    assert said == {
        "answers": ["NOERROR"] * 3, "asked": ["a.zone.example.", "b.zone.example."], "new": True,
        "ids": [str(UID)], "groups": "", "rights": 0, "no_new": "1",
    }  # fmt: skip


def test_idle_connections_and_damage_end_and_do_not_hold_up_others() -> None:
    said = run(
        """
        box = Box("/proc/self/ns/net")
        idle = [socket.create_connection(("127.0.0.53", 53)) for _ in range(20)]
        idle[0].sendall(b"\\xff\\xff" + bytes(4000))
        for data in (b"", b"x", os.urandom(12), bytes(1500), b"\\xc0\\x0c" * 200):
            box.flood(3, data)
        print(json.dumps({"answer": box.ask("a.zone.example"), "asked": asked}))
        """
    )
    assert said == {"answer": "NOERROR", "asked": ["a.zone.example."]}


def test_who_leaves_is_answered_no_more_and_its_namespace_goes() -> None:
    said = run(
        """
        child = other_namespace()
        inode = os.stat(f"/proc/{child.pid}/ns/net").st_ino
        box, other = Box(f"/proc/{child.pid}/ns/net"), Box("/proc/self/ns/net")
        answers = [box.ask("a.zone.example"), other.ask("a.zone.example")]
        held = resolver.pid
        resolver.leave(box.number)
        child.kill(); child.wait(); os.close(box.namespace)
        other.ask("b.zone.example")
        def sockets():
            found = []
            for fd in Path(f"/proc/{held}/fd").iterdir():
                try: found.append(os.readlink(fd))
                except FileNotFoundError: pass
            return sum(one.startswith("socket:") for one in found)
        # Its control socket, one sandbox's two, asyncio's own pair; a question asked twice may still be out.
        while sockets() > 5:
            time.sleep(0.05)
        print(json.dumps({"answers": answers, "sockets": sockets()}))
        """
    )
    assert said == {"answers": ["NOERROR"] * 2, "sockets": 5}
