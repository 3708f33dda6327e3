"""One machine's parts, each of which can be killed, filled, cut off or put into another time."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import replaying
from proxy import Proxy
from store_server import Server

from invigilator.guard.home import Home

HANG_S = 240.0
"""For hangs alone: no machine is so loaded."""
DAY_NS = 86_400 * 10**9
DATABASE = "faults"


class Machine:
    """Replaying agent → proxy → serve → proxy → ClickHouse, each started again when it was killed.

    `spool_disk`, `store_disk`: folders on small disks of their own, or None. `clock`: the wall clock of agent
    and serve.
    """

    def __init__(self, place: Path, library: Path, seed: int, *, disks: bool, skewed: bool) -> None:
        self.choose = random.Random(seed)
        self.place, self.seed = place, seed
        self.home = Home(place / "home").make()
        self.log, self.stop_file = place / "log", place / "stop"
        self.data = place / "clickhouse"
        self.data.mkdir()
        self._mounts = contextlib.ExitStack()
        if disks:
            self._mounts.enter_context(small_disk(self.home.spool, "16m", 0o700))
            self._mounts.enter_context(small_disk(self.data, "400m", 0o755))
        self.clock = Clock(place) if skewed else None
        self.server = Server(library, self.data)
        self.server.start()
        self.to_store = Proxy(self.server.port, self.choose, share=0.3)
        self.to_serve = Proxy(self.home.serve_socket, self.choose, share=0.6)
        self.serve: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None
        self.kills = dict.fromkeys(("agent", "serve", "store"), 0)

    @property
    def store_url(self) -> str:
        """The store, round every proxy."""
        return f"{self.server.url}/{DATABASE}"

    def has_schema(self) -> bool:
        """Whether serve has found the store in order, and said so."""
        log = self.place / "serve.log"
        return log.exists() and "the store is open" in log.read_text(errors="replace")

    def catch_up(self) -> None:
        """Wait, with connections that hold, until what waits in the spool by now is stored."""
        stormy = self.to_serve.stormy, self.to_store.stormy
        self.to_serve.stormy = self.to_store.stormy = False
        waiting = {path.name for path in self.home.spool.glob("*.arrow")}
        wait_until(lambda: waiting.isdisjoint(path.name for path in self.home.spool.iterdir()), self.said)
        self.to_serve.stormy, self.to_store.stormy = stormy

    def start_serve(self) -> None:
        """Start `guard serve` on the store behind its proxy; it may take its time."""
        command = [sys.executable, "-m", "invigilator.guard.cli.main", "serve", "--home", str(self.home.root)]
        self.serve = self._start([*command, "--store", f"{self.to_store.url}/{DATABASE}"], "serve.log")

    def start_agent(self, *plan: str) -> None:
        """Start the replaying agent, which sends to the proxy before serve."""
        command = [
            sys.executable,
            replaying.__file__,
            self.home.root,
            self.log,
            self.stop_file,
            self.seed,
            *plan,
        ]
        self.agent = self._start([str(word) for word in command], "agent.log")

    def kill(self, who: str) -> None:
        """SIGKILL one, and start it again a moment later."""
        self.kills[who] += 1
        if who == "store":
            self.server.kill()
            self.pause(0.3)
            self.server.start()
            return
        process = self.agent if who == "agent" else self.serve
        assert process is not None
        end(process, signal.SIGKILL)
        self.pause(0.3)
        if who == "agent":
            self.start_agent()
        else:
            self.start_serve()

    def pause(self, most_s: float) -> None:
        """A moment of any length."""
        time.sleep(self.choose.uniform(0.0, most_s))

    def fill(self, disk: Path) -> None:
        """Fill a disk for a moment."""
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        self.pause(0.6)
        filler.unlink(missing_ok=True)

    def heal(self) -> None:
        """No more faults; wait until all that was begun is stored."""
        self.to_serve.stormy = self.to_store.stormy = False
        self.to_serve.cut_all()
        self.to_store.cut_all()
        if self.clock:
            self.clock.shift(0)
        self.stop_file.touch()
        # Rollouts whose verdict the spool did not take are told of by the next agent.
        assert self.agent is not None and self.agent.wait(HANG_S) == 0, self.said()
        self.start_agent()
        assert self.agent.wait(HANG_S) == 0, self.said()
        assert self.serve is not None
        end(self.serve, signal.SIGTERM)

    def close(self) -> None:
        """End everything."""
        for process in (self.agent, self.serve):
            if process is not None and process.poll() is None:
                end(process, signal.SIGKILL)
        self.to_serve.close()
        self.to_store.close()
        self.server.kill()
        self._mounts.close()

    def said(self) -> str:
        """What agent and serve logged last."""
        logs = [self.place / "agent.log", self.place / "serve.log"]
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())

    def _start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "INVIGILATOR_SERVE_URL": self.to_serve.url}
        if self.clock:
            environment |= self.clock.environment()
        with (self.place / log).open("ab") as out:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )


class Clock:
    """A wall clock that the test sets, for the programs that it starts."""

    def __init__(self, place: Path) -> None:
        self._library, self._file = place / "skew.so", place / "skew"
        source = Path(__file__).with_name("skew.c")
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-O2",
            "-Wall",
            "-Werror",
            "-o",
            str(self._library),
            str(source),
        ]
        subprocess.run(command, check=True, timeout=60)
        self._library.chmod(0o755)
        self._file.write_bytes(bytes(mmap.PAGESIZE))
        self._file.chmod(0o644)
        with self._file.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def environment(self) -> dict[str, str]:
        """What puts a program into this time."""
        return {"LD_PRELOAD": str(self._library), "SKEW_FILE": str(self._file)}

    def shift(self, by_ns: int) -> None:
        """Set it off by so much."""
        self._page[:8] = by_ns.to_bytes(8, sys.byteorder, signed=True)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal and wait for the end."""
    process.send_signal(number)
    process.wait(HANG_S)


@contextlib.contextmanager
def small_disk(folder: Path, size: str, mode: int) -> Iterator[None]:
    """A small disk at `folder` while the body runs."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode={mode:o}", "faults", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def wait_until(condition: Callable[[], bool], said: Callable[[], str]) -> None:
    """Wait for a condition; a failed test, with what was said, where it does not come."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)
