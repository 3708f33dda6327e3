"""Programs, libraries and folders that parts of Invigilator need."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from invigilator.guard.home import Home
from invigilator.guard.probes.finding import Finding, State

GIB = 1 << 30
ROOM_NEEDED_BYTES = 5 * GIB
HEADERS = Path("/usr/include/bpf/bpf_helpers.h")


def findings(home: Home) -> Iterator[Finding]:
    """Who asks, the tools to build with, the libraries of node and store, the state folder."""
    yield access()
    yield from build()
    yield from libraries()
    yield state_folder(home)


def access() -> Finding:
    """Root, and the capabilities that containers often take away."""
    root = os.geteuid() == 0
    detail = f"uid {os.geteuid()}"
    state: State = "yes" if root else "no"
    if root:
        missing = [name for bit, name in ((21, "SYS_ADMIN"), (12, "NET_ADMIN")) if not effective() >> bit & 1]
        state, detail = ("no", f"root without {', '.join(missing)}") if missing else ("yes", "root")
    fix = "" if state == "yes" else "run as root, outside a container that drops capabilities"
    return Finding("access", "root", state, detail, "sandboxes and sensor", fix, needed=True)


def effective() -> int:
    """This process's effective capabilities as a bit set."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


def build() -> Iterator[Finding]:
    """What compiles the kernel programs and the launcher on first use."""
    for name, present, gives, package in (
        ("clang", shutil.which("clang") or shutil.which("clang-14"), "compiling the sensor", "clang"),
        ("libbpf headers", HEADERS.exists() and str(HEADERS), "compiling the sensor", "libbpf-dev"),
        ("C compiler", shutil.which("cc") or shutil.which("gcc"), "compiling the launcher", "gcc"),
    ):
        fix = "" if present else f"apt-get install {package}"
        yield Finding("build", name, "yes" if present else "no", str(present or "missing"), gives, fix)


def libraries() -> Iterator[Finding]:
    """Python packages by the extra that brings them."""
    for name, extra, gives in (
        ("numpy", "node", "reading events"),
        ("pyarrow", "node", "segments"),
        ("dns", "node", "names for sandboxes"),
        ("clickhouse_connect", "serve", "the store"),
        ("chdb", "serve", "the embedded store"),
        ("fastapi", "serve", "the API"),
        ("uvicorn", "serve", "the API"),
        ("pandas", "serve", "data frames"),
    ):
        present = importlib.util.find_spec(name) is not None
        fix = "" if present else f"pip install 'invigilator[{extra}]'"
        detail = "installed" if present else "not installed"
        yield Finding("store", name, "yes" if present else "no", detail, gives, fix, needed=extra == "node")


def state_folder(home: Home) -> Finding:
    """Where the state lives, and the room on its disk."""
    folder = next(place for place in (home.root, *home.root.parents) if place.exists())
    free = shutil.disk_usage(folder).free
    writable = os.access(folder, os.W_OK)
    state: State = "no" if not writable else "partly" if free < ROOM_NEEDED_BYTES else "yes"
    detail = f"{home.root}, {free / GIB:.1f} GiB free" + ("" if writable else ", not writable for this user")
    fix = {"no": "set INVIGILATOR_HOME to a folder of your own", "partly": "free some space"}.get(state, "")
    return Finding("store", "state folder", state, detail, "spool, store and sandboxes", fix)
