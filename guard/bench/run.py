"""All sections of `guard bench`, by name."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from invigilator.guard.bench import (
    enforcement,
    flow,
    hooks,
    lives,
    many,
    names,
    penalties,
    researchers,
    service,
    work,
)
from invigilator.guard.bench.measure import Section
from invigilator.guard.errors import GuardError
from invigilator.guard.release import version

SECTIONS: Mapping[str, tuple[str, Callable[[bool], Section]]] = {
    "outside": (
        "system calls outside every sandbox: bare, floor, sensor",
        lambda quick: hooks.outside(3 if quick else 9, 0.2 if quick else 1.0),
    ),
    "inside": (
        "an open/close loop in a sandbox, without and with the sensor",
        lambda quick: hooks.inside(3 if quick else 9, 0.2 if quick else 1.0),
    ),
    "peers": (
        "strace, bpftrace and BCC on an open/close loop",
        lambda quick: hooks.beside_peers(2 if quick else 5, 0.2 if quick else 1.0),
    ),
    "work": (
        "clone, install and test a real package, without and with the sensor",
        lambda quick: work.work(1 if quick else 25),
    ),
    "drain": (
        "events drained a second of the reader's CPU",
        lambda quick: flow.draining(1 if quick else 3, 2.0 if quick else 10.0),
    ),
    "store": ("rows a second from ring to chDB", lambda quick: flow.to_store(3.0 if quick else 60.0)),
    "creation": ("create, first instruction, gone", lambda quick: lives.creation(10 if quick else 200)),
    "registrations": (
        "registrations with the sensor",
        lambda quick: lives.registrations(1_000 if quick else 20_000),
    ),
    "enforcement": (
        "profiles made and loaded, a sandbox entered, a connect under many rules",
        lambda quick: enforcement.enforcement(3 if quick else 15),
    ),
    "names": (
        "1,000 live sandboxes with a link, and with rules by name",
        lambda quick: names.names(20, 10) if quick else names.names(),
    ),
    "many": (
        "2,000 live sandboxes, 5,000 short ones",
        lambda quick: many.many(20, 50) if quick else many.many(),
    ),
    "ingest": (
        "rows a second from spool through serve into each store",
        lambda quick: service.ingest(2, 1) if quick else service.ingest(20, 5),
    ),
    "penalties": (
        "a batch of 32,000 penalties of 200,000 rollouts, end to end",
        lambda quick: penalties.penalties(5_000, 1_000, 2) if quick else penalties.penalties(),
    ),
    "queries": (
        "ten questions of researchers (--events says over how many)",
        lambda quick: (
            researchers.queries(researchers.QUICK_EVENTS, 2)
            if quick
            else researchers.queries(researchers.EVENTS)
        ),
    ),
    "api": (
        "latency of the API's routes under 50 clients, memory of serve",
        lambda quick: service.api(100_000, 1.0) if quick else service.api(2_000_000, 20.0),
    ),
}
GROUPS: Mapping[str, Sequence[str]] = {"service": ("ingest", "penalties", "queries", "api")}
"""Names for several sections; one that does not exist is left out."""


def chosen(names: Sequence[str]) -> list[str]:
    """The sections asked for, all where none is; `GuardError` for an unknown name."""
    unknown = [name for name in names if name not in SECTIONS and name not in GROUPS]
    if unknown:
        fix = f"choose of: {', '.join([*SECTIONS, *GROUPS])}"
        raise GuardError(f"unknown section: {', '.join(unknown)}", fix=fix)
    spread = [one for name in names for one in GROUPS.get(name, (name,)) if one in SECTIONS]
    return list(dict.fromkeys(spread)) or list(SECTIONS)


def measure(names: Sequence[str], *, quick: bool, events: int | None = None) -> Iterator[tuple[str, Section]]:
    """Measure section after section. `events`: how many those that ask a store have in it."""
    for name in chosen(names):
        if name == "queries" and events:
            yield name, researchers.queries(events)
        else:
            yield name, SECTIONS[name][1](quick)


def document(sections: Mapping[str, Section]) -> dict[str, Any]:
    """Figures with what they were measured on."""
    return {
        "invigilator": version(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "processors": _processors(),
        "sections": {name: section.json() for name, section in sections.items()},
    }


def write(sections: Mapping[str, Section], target: Path) -> None:
    """Write figures as JSON."""
    target.write_text(json.dumps(document(sections), indent=2) + "\n")


def _processors() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
