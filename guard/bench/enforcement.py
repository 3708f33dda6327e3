"""What confinement costs: making and loading profiles, entering a sandbox, a connect under many rules."""

from __future__ import annotations

import ipaddress
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from invigilator.ebpf.events import Phase
from invigilator.ebpf.network import NetRule
from invigilator.ebpf.sensor import Sensor
from invigilator.guard.bench import place
from invigilator.guard.bench.measure import Section, interleave
from invigilator.profiles import seccomp
from invigilator.profiles.apparmor import ParserMissingError, binary, compile
from invigilator.sandbox import apparmor
from invigilator.sandbox.process import ProcessBackend, ProcessSandbox

RULES = (10, 1_000, 10_000)
CONNECTS = 20_000
TARGET = "198.51.100.9"
FLAT_AT_MOST = 1.1
"""Of a connect under many rules to one under few: a longest prefix is one look-up, whose depth grows with the
logarithm of the rules at most."""
Variant = Callable[[], AbstractContextManager[None]]
CONNECT = """
import socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
number = int(sys.argv[2])
began = time.process_time_ns()
for _ in range(number):
    try:
        sock.connect((sys.argv[1], 9))
    except OSError:
        pass
print((time.process_time_ns() - began) / number)
"""
OPENS = """
import os, sys, time
number = int(sys.argv[1])
began = time.process_time_ns()
for _ in range(number):
    os.close(os.open("/etc/passwd", os.O_RDONLY))
print((time.process_time_ns() - began) / number)
"""


def enforcement(rounds: int = 15) -> Section:
    """All of it; what this machine has not is told as missing."""
    section = Section("enforcement")
    _profiles(section, rounds)
    with tempfile.TemporaryDirectory() as folder, Sensor.open() as sensor, place.drained(sensor):
        backend = ProcessBackend(Path(folder) / "home", stock=2)
        try:
            _entering(section, backend, sensor, rounds)
            _opening(section, backend, rounds)
            with _filtered(sensor, backend):
                _connecting(section, backend, sensor, rounds)
        finally:
            backend.close()
    return section


def _profiles(section: Section, rounds: int) -> None:
    policy = place.policy()

    def fresh() -> None:
        seccomp.forget()
        seccomp.compile(policy, "agent")

    section.add("seccomp: policy → filter", "ms", _times(fresh, rounds))
    section.add("seccomp: filter kept", "ms", _times(lambda: seccomp.compile(policy, "agent"), rounds))
    try:
        section.add("profile: policy → text", "ms", _times(lambda: compile(policy, "agent"), rounds))
        profile = compile(policy, "agent")
        made = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as cache:
                made += _times(lambda cache=cache: binary(profile, Path(cache)), 1)  # type: ignore[misc]
        section.add("profile: text → binary, by apparmor_parser", "ms", made)
        with tempfile.TemporaryDirectory() as cache:
            binary(profile, Path(cache))
            again = _times(lambda: binary(profile, Path(cache)), rounds)
            section.add("profile: binary from the cache", "ms", again)
            _loading(section, Path(cache), rounds)
    except ParserMissingError as error:
        section.missing.append(f"profiles: {error}")


def _loading(section: Section, cache: Path, rounds: int) -> None:
    found = apparmor.tier()
    if found.state == "absent":
        section.missing.append(f"loading and entering profiles: {found.why}")
        return
    policy, loaded = place.policy(), []
    for _ in range(rounds):
        profiles = apparmor.Profiles(cache)
        began = time.perf_counter()
        phases = profiles.take(policy)
        loaded.append((time.perf_counter() - began) * 1e3)
        profiles.give_back(phases)
        profiles.close()
    section.add("profiles of all phases: cached, into the kernel", "ms", loaded)


@contextmanager
def _filtered(sensor: Sensor, backend: ProcessBackend) -> Iterator[None]:
    """The network's programs on the sandboxes' cgroup, for the time of the block."""
    handles = sensor.attach_network(backend.parent_cgroup())
    try:
        yield
    finally:
        sensor.detach_network(handles)


def _entering(section: Section, backend: ProcessBackend, sensor: Sensor, rounds: int) -> None:
    """The time from the order to the end of `true`, in one sandbox that stands. The cgroup is left out of no
    variant: it is the place in which a command is started."""
    with place.started(backend) as box:
        assert isinstance(box, ProcessSandbox)

        def enter(variant: Variant) -> float:
            with variant():
                return _times(lambda: place.output_of(box, ["/bin/true"]), 1)[0]

        variants = _variants(box, lambda: _filtered(sensor, backend))
        took = interleave({name: partial(enter, variant) for name, variant in variants.items()}, rounds)
    for name, times in took.items():
        section.add(f"enter, run `true`, end: {name}", "ms", times)


def _variants(box: ProcessSandbox, filtered: Variant) -> dict[str, Variant]:
    @contextmanager
    def no_seccomp() -> Iterator[None]:
        with filtered(), replaced(seccomp, "compile", lambda policy, phase: seccomp.ALLOW_ALL):
            yield

    @contextmanager
    def no_profile() -> Iterator[None]:
        with filtered(), replaced(box, "_profiles", {}):
            yield

    found: dict[str, Variant] = {
        "every tier": filtered,
        "without seccomp": no_seccomp,
        "without the network's programs": nullcontext,
    }
    if apparmor.tier().state != "absent":
        found["without AppArmor"] = no_profile
    return found


def _opening(section: Section, backend: ProcessBackend, rounds: int) -> None:
    if apparmor.tier().state == "absent":
        section.missing.append("opening files under AppArmor: " + apparmor.tier().why)
        return
    ratios = []
    with place.started(backend) as box:
        for _ in range(rounds):
            with_profile = float(place.output_of(box, ["python3", "-c", OPENS, "20000"]))
            with replaced(box, "_profiles", {}):
                ratios.append(with_profile / float(place.output_of(box, ["python3", "-c", OPENS, "20000"])))
    section.add("open and close under AppArmor ÷ without", "×", ratios)


def _connecting(section: Section, backend: ProcessBackend, sensor: Sensor, rounds: int) -> None:
    first = int(ipaddress.ip_address("203.0.113.0"))
    with place.started(backend, sensor) as box:
        slot = max(sensor._registered)

        def arm(count: int, wanted: bool) -> float:
            others = [NetRule.of(str(ipaddress.ip_address(first + number))) for number in range(count - 1)]
            sensor.set_network(slot, Phase.AGENT, False, [*others, NetRule.of(TARGET, allow=wanted)])
            return float(place.output_of(box, ["python3", "-c", CONNECT, TARGET, str(CONNECTS)]))

        for wanted, name in ((True, "an allowed"), (False, "a refused")):
            took = interleave({f"{n}": partial(arm, n, wanted) for n in RULES}, rounds)
            for count in RULES:
                section.add(f"{name} connect with {count:,} rules, CPU", "ns", took[f"{count}"])
            few, many = took[f"{RULES[0]}"], took[f"{RULES[-1]}"]
            ratios = [one / other for one, other in zip(many, few, strict=True)]
            section.add(
                f"{name} connect, {RULES[-1]:,} rules ÷ {RULES[0]:,}", "×", ratios, at_most=FLAT_AT_MOST
            )


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """An attribute of an object, for the time of the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _times(action: Callable[[], object], rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        found.append((time.perf_counter() - began) * 1e3)
    return found
