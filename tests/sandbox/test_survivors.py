"""Who lives on after a phase: whoever could still do anything, and nobody whose death is sealed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from invigilator.sandbox.dying import is_dying, is_ending

if TYPE_CHECKING:
    from conftest import Box, MakeBox

PTRACE_CONT, PTRACE_SEIZE = 7, 0x4206
PTRACE_O_TRACEEXIT = 1 << 6
IN_EXIT = signal.SIGTRAP | 6 << 8
"""What waitpid(2) says of a tracee that is stopped in its exit (ptrace(2), PTRACE_EVENT_EXIT)."""
WALL = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)

THREADS = """
import os, sys, threading, time
for _ in range(3): threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
print("ready", flush=True)
time.sleep(100)
"""
FIRST_THREAD_ENDS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(100,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
HOLDS_TERM = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
time.sleep(100)
"""
HEEDS_NO_TERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: time.sleep(100)
"""


@contextmanager
def lingering(program: str) -> Iterator[int]:
    """A process that runs a Python program and has said that it is ready; ended with the block."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.kill()
        child.wait(20)
        child.stdout.close()


def threads_of(pid: int) -> list[int]:
    """Its threads, the first one last."""
    found = [int(one.name) for one in Path(f"/proc/{pid}/task").iterdir()]
    return sorted(found, key=lambda thread: thread == pid)


def hold_in_exit(pid: int, number: int) -> None:
    """Send a signal that ends a process, and hold each of its threads in the midst of its exit."""
    threads = threads_of(pid)
    for thread in threads:
        assert LIBC.ptrace(PTRACE_SEIZE, thread, None, ctypes.c_void_p(PTRACE_O_TRACEEXIT)) == 0, os.strerror(
            ctypes.get_errno()
        )
    os.kill(pid, number)
    for thread in threads:
        while (told := os.waitpid(thread, WALL)[1] >> 8) != IN_EXIT:
            LIBC.ptrace(PTRACE_CONT, thread, None, ctypes.c_void_p(told))  # on with the signal


def let_go(pid: int) -> None:
    """Let every held thread end, and take note of it: nobody else is told before."""
    threads = threads_of(pid)
    for thread in threads:
        LIBC.ptrace(PTRACE_CONT, thread, None, None)
    for thread in threads:
        os.waitpid(thread, WALL)


def test_who_ignores_the_end_of_a_phase_is_found_and_ended(make_box: MakeBox) -> None:
    box = make_box()
    box.sh("setsid sleep 100 & until pgrep -x sleep; do sleep 0.02; done; exit 0")
    survivors = box.sandbox.survivors("verify")
    assert len(survivors) == 1 and Path(f"/proc/{survivors[0]}/comm").read_text() == "sleep\n"
    assert box.sandbox.survivors("agent") == []
    box.sandbox.end_processes("agent")
    assert box.sandbox.survivors("verify") == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_who_was_killed_and_is_still_dying_is_no_survivor(box: Box, number: int) -> None:
    box.sh("setsid sleep 100 & until pgrep -x sleep; do sleep 0.02; done; exit 0")
    [pid] = box.sandbox.survivors("verify")
    hold_in_exit(pid, number)
    groups = box.sandbox._groups
    try:
        assert groups.processes("agent") == [pid]  # its cgroup still has it
        assert box.sandbox.survivors("verify") == []
    finally:
        let_go(pid)
    box.sandbox.end_processes("agent")
    assert groups.processes("agent") == []


def test_a_process_of_many_threads_is_dying_when_all_are() -> None:
    with lingering(THREADS) as pid:
        assert not is_dying(pid)
        hold_in_exit(pid, signal.SIGKILL)
        assert is_dying(pid)
        let_go(pid)


def test_a_process_whose_first_thread_ended_lives() -> None:
    with lingering(FIRST_THREAD_ENDS) as pid:
        while b") Z " not in Path(f"/proc/{pid}/stat").read_bytes():
            os.sched_yield()
        assert not is_dying(pid)


@pytest.mark.parametrize("program", [HOLDS_TERM, HEEDS_NO_TERM], ids=["blocked", "ignored"])
def test_a_signal_that_does_not_end_a_process_changes_nothing(program: str) -> None:
    with lingering(program) as pid:
        os.kill(pid, signal.SIGTERM)
        assert not is_dying(pid)
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        assert not is_dying(pid)


def test_a_process_that_is_gone_is_dying() -> None:
    with lingering(THREADS) as pid:
        pass
    assert is_dying(pid)


RUNS, GIVES_BACK = 0x400040, 0x40004C
"""Flags of one process, seen on Linux 6.18 before its SIGKILL and while the kernel gave its memory back,
which took half a second for 600 MiB: it stood in its cgroup all the while."""


@pytest.mark.parametrize(("flags", "dying"), [(RUNS, False), (GIVES_BACK, True), (RUNS | 0x4, True)])
@pytest.mark.parametrize("name", ["sleep", "a) Z 0 (b", ") X 1 1 1 1 1 4"])
def test_a_process_is_judged_by_its_flags_and_not_by_its_name(name: str, flags: int, dying: bool) -> None:
    assert is_ending(f"905 ({name}) R 1 905 905 0 -1 {flags} 203 0\n".encode()) is dying
