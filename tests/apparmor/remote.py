"""Tests below a kernel's folder run inside that kernel, and are reported here as if they had run here.

On this machine the first test of a folder boots the kernel once, with all chosen tests of that folder; inside
it, each report is written to a file as it comes. A kernel that cannot be had skips its tests and says why; a
guest that ends too early fails those that it did not come to.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rig import boot, tcg, uml
from rig.disk import DiskError, disk

from invigilator.ebpf.build import BuildError, object_file
from invigilator.sandbox import build

FOLDER = Path(__file__).resolve().parent
KERNELS: dict[str, tuple[boot.Kernel, float]] = {
    "uml": (uml.KERNEL, 1500.0),
    "tcg": (tcg.KERNEL, 1500.0),
    "systemd": (tcg.SYSTEMD, 1500.0),
}
"""By folder: the kernel, and after how many seconds it hangs."""
INSIDE = "INVIGILATOR_RIG"
OUT = Path("/run/out")
"""In the guest: the folder that it shares with this machine."""


def kernel_of(item: pytest.Item) -> str | None:
    """The kernel that a test belongs to; None for one of this machine, or where we are in the guest."""
    if INSIDE in os.environ or not item.path.is_relative_to(FOLDER):
        return None
    name = item.path.relative_to(FOLDER).parts[0]
    return name if name in KERNELS else None


@dataclass(slots=True)
class Guest:
    """One boot and what came of it."""

    name: str
    reports: dict[str, list[Any]] = field(default_factory=dict)
    skip: str = ""
    trouble: str = ""
    out: Path | None = None

    def run(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        """Boot, run the items, take their reports."""
        kernel, timeout_s = KERNELS[self.name]
        self.skip = _missing() or kernel.missing()
        if self.skip:
            return
        self.out = Path(tempfile.mkdtemp(prefix=f"rig-{self.name}-", dir=_cache()))
        try:
            shutil.copy(build.launcher(_cache() / "launcher"), self.out)
            _compile(FOLDER / "tools/raw.c", self.out / "raw")
            if self.name != "uml":
                object_file()  # the sensor; the guest has no clang
            image = disk(_cache(), kernel.packages)
            done = boot.run(kernel, image, _job(self.name, items), self.out, timeout_s)
            self.trouble = (
                "" if done.status in (0, 1) else f"pytest ended with {done.status}:\n{done.log[-3000:]}"
            )
        except (boot.RigError, DiskError, BuildError) as error:
            self.trouble = str(error)
        lines = self.out / "reports"
        for line in lines.read_text().splitlines() if lines.exists() else ():
            report = config.hook.pytest_report_from_serializable(config=config, data=json.loads(line))
            self.reports.setdefault(report.nodeid, []).append(report)

    def reports_of(self, item: pytest.Item) -> list[Any]:
        """What to report for an item."""
        if self.skip:
            return [_report(item, "skipped", (str(item.path), 0, f"Skipped: {self.skip}"))]
        found = self.reports.get(item.nodeid, [])
        if any(report.when == "teardown" for report in found):
            return found
        return [*found, _report(item, "failed", self.trouble or "the guest did not come to this test")]


def _missing() -> str:
    if os.geteuid():
        return "the guests' disk is made by root"
    return "" if Path("/dev/loop-control").exists() else "the guests' disk is made on a loop device"


def _compile(source: Path, target: Path) -> None:
    """Here, where it takes no time."""
    command = ["gcc", "-static", "-O1", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise boot.RigError(f"{source.name} does not compile: {done.stderr}")


def _cache() -> Path:
    folder = boot.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _job(name: str, items: Sequence[pytest.Item]) -> str:
    words = " ".join(shlex.quote(item.nodeid) for item in items)
    return (
        f"export {INSIDE}={name} PYTHONDONTWRITEBYTECODE=1 INVIGILATOR_HOME=/var/lib/invigilator\n"
        f"mkdir -p $INVIGILATOR_HOME/roots && cp -p {OUT}/launcher-* $INVIGILATOR_HOME/roots/\n"
        f"exec {sys.executable} -m pytest -p no:cacheprovider -q {words}\n"
    )


def _report(item: pytest.Item, outcome: Any, why: Any) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, {}, outcome, why, "call")


GUESTS = pytest.StashKey[dict[str, Guest]]()


def guest(session: pytest.Session, name: str) -> Guest:
    """The guest of a kernel, run with all of the session's tests for it where it has not yet been."""
    guests = session.config.stash.setdefault(GUESTS, {})
    if name not in guests:
        guests[name] = Guest(name)
        guests[name].run(session.config, [one for one in session.items if kernel_of(one) == name])
    return guests[name]


def run_in_guest(item: pytest.Item, name: str) -> None:
    """Report an item's test as its kernel's guest ran it."""
    found = guest(item.session, name)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in found.reports_of(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def tell(config: pytest.Config, report: pytest.TestReport) -> None:
    """In the guest: put a report where this machine finds it."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    with (OUT / "reports").open("a") as file:
        file.write(json.dumps(data) + "\n")
