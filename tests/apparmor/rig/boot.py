"""Boot a kernel, run one job in it, bounded."""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
CONSOLE_KEPT_BYTES = 4000
END_S = 30.0


class RigError(Exception):
    """The kernel could not be had, or the guest ended before the job did."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`status`: the job's exit status. `log`: its output. `console`: the kernel's. `seconds`: all told."""

    status: int
    log: str
    console: str
    seconds: float


class Kernel(abc.ABC):
    """One way to boot. `name`: what `init.sh` knows it by. `packages`: what its disk has beside the usual."""

    name: str
    packages: tuple[str, ...] = ()

    @abc.abstractmethod
    def missing(self) -> str:
        """What to install, or the empty string."""

    @abc.abstractmethod
    def command(self, disk: Path, out: Path, scratch: Path, words: str, cache: Path) -> list[str]:
        """The command that boots it. `words`: for the kernel's command line. `scratch`: goes afterwards."""


def cache_folder() -> Path:
    """Where disks and kernels are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "invigilator" / "rig"


def run(kernel: Kernel, disk: Path, job: str, out: Path, timeout_s: float, words: str = "") -> Outcome:
    """Run a script of bash's as the guest's root; `out` is /run/out there. The guest is ended at the latest
    after `timeout_s`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "job").write_text(job)
    shutil.copy(Path(__file__).with_name("init.sh"), out / "init")
    for old in ("status", "log"):
        (out / old).unlink(missing_ok=True)
    cache = cache_folder()
    # Short: user-mode-linux puts a socket below it, and such names have at most 107 bytes.
    scratch = Path(tempfile.mkdtemp(prefix="rig"))
    all_words = f"rig.kernel={kernel.name} rig.tree={CHECKOUT} rig.out={out} panic=-1 {words}"
    began = time.monotonic()
    try:
        console = _boot(kernel.command(disk, out, scratch, all_words, cache), scratch, timeout_s)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    log = out / "log"
    said = log.read_text(errors="replace") if log.exists() else ""
    try:
        status = int((out / "status").read_text())
    except FileNotFoundError:
        raise RigError(f"{kernel.name}: the guest ended before its job:\n{said[-2000:]}\n{console}") from None
    return Outcome(status, said, console, time.monotonic() - began)


def _end(guest: subprocess.Popen[bytes]) -> None:
    """End it and what is left of it: user-mode-linux has a process of this machine's for each of its own, all
    in the group that is its alone."""
    deadline = time.monotonic() + END_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(guest.pid, signal.SIGKILL)
            guest.poll()
            time.sleep(0.01)
        raise RigError(f"the guest's processes (group {guest.pid}) do not end")


def _boot(command: list[str], scratch: Path, timeout_s: float) -> str:
    with (scratch / "console").open("w+b") as console:
        guest = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            cwd=scratch,
            env={"PATH": "/usr/bin:/bin", "HOME": str(scratch), "TMPDIR": str(scratch)},
            start_new_session=True,
        )
        try:
            guest.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(guest)
        console.seek(0)
        return console.read().decode(errors="replace")[-CONSOLE_KEPT_BYTES:]
