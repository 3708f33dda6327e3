"""What rules by name cost: sandboxes whose policy has them beside sandboxes with a link alone."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from invigilator.ebpf.sensor import Sensor
from invigilator.guard.bench import place
from invigilator.guard.bench.flow import resident_bytes
from invigilator.guard.bench.many import descriptors
from invigilator.guard.bench.measure import Section
from invigilator.guard.naming import name_events
from invigilator.profiles.policy import EgressRule, Network, Policy
from invigilator.sandbox.base import Sandbox
from invigilator.sandbox.process import ProcessBackend

KIB = 1024
SHARE_MAX_MIB = 5.0
"""Of one sandbox's part of the resolver's process: more, and one process for all would be no saving."""
NAMED = EgressRule(name="zone", target="*.example.org", ports=[443])
PLAIN = EgressRule(name="block", target="192.0.2.0/24", ports=[443])
ASK = """
import socket, sys, time
question = b"\\x07\\x07\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\5other\\7example\\3net\\0\\0\\1\\0\\1"
with socket.socket(type=socket.SOCK_DGRAM) as one:
    one.settimeout(20)
    one.connect(("127.0.0.53", 53))
    took = []
    for _ in range(int(sys.argv[1])):
        began = time.perf_counter()
        one.send(question)
        one.recv(512)
        took.append(time.perf_counter() - began)
        time.sleep(0.02)
print(*(each * 1e3 for each in took))
"""


@dataclass(frozen=True, slots=True)
class _Held:
    """`own`, `private`: bytes of this process, and of the resolver's that it shares with nobody."""

    own: int
    descriptors: int
    private: int
    private_descriptors: int

    @classmethod
    def now(cls, pid: int | None) -> _Held:
        private, descriptors = (0, 0) if pid is None else (_private_bytes(pid), _descriptors(pid))
        return cls(resident_bytes(), _descriptors("self"), private, descriptors)


def names(live: int = 1_000, questions: int = 50) -> Section:
    """As many live sandboxes with a link alone, then with names: start, memory, descriptors, an answer."""
    section = Section("names")
    with tempfile.TemporaryDirectory() as folder, descriptors(), Sensor.open() as sensor:
        backend = ProcessBackend(Path(folder) / "home", stock=8)
        try:
            with place.drained(sensor):
                for name, rule in (("a link", PLAIN), ("a link and names", NAMED)):
                    _alive(section, backend, sensor, name, rule, live, questions)
        finally:
            backend.close()
    return section


def _alive(
    section: Section,
    backend: ProcessBackend,
    sensor: Sensor,
    name: str,
    rule: EgressRule,
    live: int,
    questions: int,
) -> None:
    base, resolver = place.policy(), backend._shared.resolver
    policy: Policy = base.model_copy(update={"name": name, "network": Network(egress=[rule]), "phases": {}})
    with contextlib.ExitStack() as boxes:
        first = boxes.enter_context(place.started(backend, sensor, rules=policy))
        if rule is NAMED:
            _answers(first, sensor, 1)  # its process is there, and has all that it needs
        before, took = _Held.now(resolver.pid), []
        for _ in range(live):
            began = time.perf_counter()
            box = boxes.enter_context(place.started(backend, sensor, rules=policy))
            took.append((time.perf_counter() - began) * 1e3)
        full = _Held.now(resolver.pid)
        said = f"{live:,} with {name}"
        section.add(f"{said}: making one", "ms", took)
        section.add(f"{said}: the agent's memory a sandbox", "KiB", [(full.own - before.own) / live / KIB])
        section.add(
            f"{said}: the agent's descriptors a sandbox", "", [(full.descriptors - before.descriptors) / live]
        )
        if rule is PLAIN:
            return
        share = (full.private - before.private) / live / KIB
        aim = SHARE_MAX_MIB * KIB
        section.add("the resolver's process: private memory a sandbox", "KiB", [share], at_most=aim)
        section.add("the resolver's process: private memory in all", "MiB", [full.private / KIB / KIB])
        more = (full.private_descriptors - before.private_descriptors) / live
        section.add("the resolver's process: descriptors a sandbox", "", [more])
        section.add(f"{said}: a question answered (REFUSED)", "ms", _answers(box, sensor, questions))


def _answers(box: Sandbox, sensor: Sensor, number: int) -> list[float]:
    """Milliseconds that each question of the newest sandbox takes."""
    box.on_names(name_events(sensor, max(sensor._registered), place.PHASES))
    return [*map(float, place.output_of(box, ["python3", "-c", ASK, str(number)]).split())]


def _descriptors(pid: int | str) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _private_bytes(pid: int) -> int:
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(row[1]) for row in rows if row[0] in ("Private_Clean:", "Private_Dirty:")) * KIB
