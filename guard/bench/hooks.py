"""What the sensor costs a system call: outside every sandbox, inside one, and beside its peers."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from invigilator.ebpf.sensor import Sensor
from invigilator.guard.bench import peers, place
from invigilator.guard.bench.measure import Section, interleave, ratios
from invigilator.sandbox.process import ProcessBackend

ITERATIONS = {"getppid": 2_000_000, "write": 2_000_000, "open": 300_000}
PARTS = 20
"""Of each loop, the quickest part counts: other tenants of the machine only ever add to it."""
PEER_ITERATIONS = 30_000
SIX = "/usr/share/bench/one/two/file"
"""A path of six components, as seen in the sandbox."""


def outside(rounds: int, scale: float = 1.0) -> Section:
    """Processes outside every sandbox: bare, with an empty program on the hook, with the sensor."""
    section = Section("hook cost outside every sandbox")
    with tempfile.TemporaryDirectory() as folder:
        loops = str(place.compile_loops(Path(folder)))
        target = Path(folder) / "one" / "two" / "three"
        target.mkdir(parents=True)
        (target / "file").touch()

        def all_loops() -> dict[str, float]:
            return {name: _loop(loops, name, scale, str(target / "file")) for name in ITERATIONS}

        samples: dict[str, list[dict[str, float]]] = {"bare": [], "floor": [], "sensor": []}
        for _ in range(rounds):
            samples["bare"].append(all_loops())
            with place.floor():
                samples["floor"].append(all_loops())
            with Sensor.open() as sensor, place.drained(sensor):
                samples["sensor"].append(all_loops())
    for name in ITERATIONS:
        bare, floor, watched = ([one[name] for one in samples[arm]] for arm in ("bare", "floor", "sensor"))
        section.add(f"{name}: bare", "ns CPU", bare)
        section.add(f"{name}: floor ÷ bare", "×", ratios(floor, bare))
        section.add(f"{name}: sensor ÷ floor", "×", ratios(watched, floor), at_most=1.05)
    return section


def inside(rounds: int, scale: float = 1.0) -> Section:
    """An open/close loop of a six-component path in a sandbox, without and with the sensor."""
    section = Section("hook cost in a sandbox")
    with tempfile.TemporaryDirectory() as folder:
        loops = place.compile_loops(Path(folder)).read_bytes()
        backend = ProcessBackend(Path(folder) / "home", stock=1)
        try:
            without: list[float] = []
            watched: list[float] = []
            for _ in range(rounds):
                without.append(_open_loop(backend, None, loops, scale))
                with Sensor.open() as sensor, place.drained(sensor):
                    watched.append(_open_loop(backend, sensor, loops, scale))
        finally:
            backend.close()
    section.add("open/close, six components: without", "ns CPU", without)
    section.add("open/close, six components: sensor ÷ without", "×", ratios(watched, without), at_most=1.6)
    return section


def beside_peers(rounds: int, scale: float = 1.0) -> Section:
    """The same open/close loop bare and under each peer that this machine has."""
    section = Section("peers on an open/close loop")
    with tempfile.TemporaryDirectory() as folder:
        loops = str(place.compile_loops(Path(folder)))
        (Path(folder) / "file").touch()
        command = [loops, "open", str(int(PEER_ITERATIONS * scale)), str(Path(folder) / "file")]
        arms: dict[str, Callable[[], float]] = {"bare": lambda: _wall_ns(command)}
        for peer in (peers.strace, peers.bpftrace, peers.bcc):
            wrapped = peer(command)
            if wrapped:
                arms[peer.__name__] = lambda wrapped=wrapped: _wall_ns(wrapped)  # type: ignore[misc]
            else:
                section.missing.append(f"{peer.__name__} is not installed (or its kernel headers)")
        samples = interleave(arms, rounds)
    for name, values in samples.items():
        if name != "bare":
            section.add(f"{name} ÷ bare", "×", ratios(values, samples["bare"]))
    return section


def _open_loop(backend: ProcessBackend, sensor: Sensor | None, loops: bytes, scale: float) -> float:
    with place.started(backend, sensor) as box:
        box.write_file("/usr/bin/bench-loops", loops, 0o755)
        place.output_of(box, ["sh", "-c", f"mkdir -p {Path(SIX).parent} && touch {SIX}"])
        count = str(int(ITERATIONS["open"] * scale))
        return float(place.output_of(box, ["/usr/bin/bench-loops", "open", count, SIX]).split()[-2])


def _loop(loops: str, name: str, scale: float, path: str) -> float:
    """CPU time an iteration: what the hook costs the caller, without what others took of the processor."""
    count = str(max(1, int(ITERATIONS[name] * scale) // PARTS))
    return min(_printed([loops, name, count, path])[0] for _ in range(PARTS))


def _wall_ns(command: Sequence[str]) -> float:
    """Wall time an iteration: a peer's cost is in other processes too."""
    return _printed(command)[1]


def _printed(command: Sequence[str]) -> tuple[float, float]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    cpu, wall = map(float, done.stdout.split()[-2:])
    return cpu, wall
