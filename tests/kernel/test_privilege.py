"""Calls that reach for more: told with their result."""

from __future__ import annotations

import errno
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from invigilator.ebpf.events import Actor, EventBatch, EventClass, Kind, Phase

from .conftest import Box

CALLS = {
    "ptrace": (Kind.PTRACE, "call(101, 16, 1, 0, 0)", {"a0": 16, "a1": 1}),
    "ptrace traceme": (Kind.PTRACE, "call(101, 0, 0, 0, 0)", {"a0": 0}),
    "process_vm_readv": (Kind.VM_ACCESS, "call(310, 1, 0, 0, 0, 0, 0)", {"a0": 0, "a1": 1}),
    "process_vm_writev": (Kind.VM_ACCESS, "call(311, 1, 0, 0, 0, 0, 0)", {"a0": 1, "a1": 1}),
    "setns": (Kind.SETNS, "call(308, os.open('/proc/self/ns/uts', 0), 0x4000000)", {"a0": 0x4000000}),
    "unshare": (Kind.UNSHARE, "call(272, 0x4000000)", {"a0": 0x4000000}),
    "unshare user": (Kind.UNSHARE, "call(272, 0x10000000)", {"a0": 0x10000000}),
    "bpf": (Kind.BPF, "call(321, 5, 0, 0)", {"a0": 5}),
    "perf_event_open": (
        Kind.PERF_OPEN,
        "call(298, struct.pack('II', 1, 0), 0, -1, -1, 0)",
        {"a0": 1, "a1": 0},
    ),
    "init_module": (Kind.MODULE, "call(175, b'x', 1, b'')", {"a0": 175}),
    "delete_module": (Kind.MODULE, "call(176, b'none', 0)", {"a0": 176}),
    "keyctl": (Kind.KEYCTL, "call(250, 0, -3, 0)", {"a0": 0}),
    "userfaultfd": (Kind.USERFAULTFD, "call(323, 1)", {"a0": 1}),
    "pidfd_getfd": (Kind.PIDFD_GETFD, "call(438, os.pidfd_open(os.getpid()), 0, 0)", {"a1": 0}),
    "pidfd_getfd refused": (Kind.PIDFD_GETFD, "call(438, 99, 7, 0)", {"a0": 99, "a1": 7}),
    "io_uring_setup": (Kind.IO_URING, "call(425, 4, ctypes.create_string_buffer(120))", {"a0": 4}),
}


@pytest.mark.parametrize("how", sorted(CALLS))
def test_privileged_call(box: Box, how: str) -> None:
    """C9 for io_uring: the ring's making is told, whether refused or not."""
    kind, doing, fields = CALLS[how]
    told = box.run(f"print({doing})", check=False)
    event = told.one(kind, **fields)
    assert event["result"] == int(told.output)
    assert event["class"] == EventClass.PRIVILEGE
    assert event["nr"] == int(doing.split("(")[1].split(",")[0])
    assert event["pid"] == told.pid


def test_module_from_a_file_names_it(box: Box, tmp_path: Path) -> None:
    (tmp_path / "m.ko").write_text("no module")
    told = box.run("print(call(313, os.open(sys.argv[1], 0), b'', 0))", tmp_path / "m.ko")
    event = told.one(Kind.MODULE)
    assert event["path"] == bytes(tmp_path / "m.ko")
    assert event["result"] == int(told.output) < 0


@pytest.mark.parametrize("way", ["clone", "clone3"])
def test_user_namespace_by_clone(box: Box, way: str) -> None:
    """Whether it works or not, somebody tried: an event with the flags."""
    doing = (
        "call(56, 0x10000000 | 17, 0, 0, 0, 0)"
        if way == "clone"
        else "call(435, struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)"
    )
    told = box.run(f"r = {doing}\nif not r: os._exit(0)\nprint(r)")
    made = [e for e in told.of(Kind.FORK) + told.of(Kind.UNSHARE) if e["a0"] & 0x10000000]
    assert len(made) == 1
    assert made[0]["result"] == int(told.output)


def test_signals_inside_ones_own_tree_are_no_facts(box: Box) -> None:
    told = box.run("p = os.fork()\nif not p: time.sleep(9)\nos.kill(p, 0); os.kill(p, 15); os.waitpid(p, 0)")
    assert not told.of(Kind.SIGNAL)


@pytest.mark.parametrize(
    "way", ["os.kill(p, 10)", "call(234, p, p, 10)", "call(424, os.pidfd_open(p), 10, 0, 0)"]
)
def test_signal_to_a_process_outside(box: Box, way: str) -> None:
    outside = subprocess.Popen(["/bin/sleep", "30"])
    try:
        told = box.run(f"p = int(sys.argv[1])\n{way}", str(outside.pid))
        event = told.one(Kind.SIGNAL)
        assert (event["a0"], event["a1"]) == (signal.SIGUSR1, outside.pid)
        assert event["a2"] > 0
        assert event["pid"] == told.pid
        assert outside.wait() == -signal.SIGUSR1
    finally:
        if outside.poll() is None:
            outside.kill()
            outside.wait()


def test_signal_that_was_refused(box: Box) -> None:
    told = box.run("os.setuid(65534); print(call(62, 1, 15))")
    event = told.one(Kind.SIGNAL)
    assert (event["result"], event["a0"], event["a1"]) == (-errno.EPERM, 15, 1)


def test_signal_to_the_platforms_command_in_the_same_sandbox(make_box: Callable[..., Box]) -> None:
    """The agent's tree is not the verifier's, though they share a sandbox."""
    box = make_box()
    box.sensor.set_step(box.slot, 1, Actor.PLATFORM)
    enter = box.folder / "cgroup.procs"
    platform = subprocess.Popen(["/bin/sh", "-c", f"echo $$ > {enter} && exec /bin/sleep 30"])
    try:
        while platform.poll() is None and not (box.events().records["kind"] == int(Kind.EXEC)).any():
            time.sleep(0.005)
        box.sensor.set_step(box.slot, 2, Actor.AGENT)
        told = box.run("os.kill(int(sys.argv[1]), 15)", str(platform.pid))
        event = told.one(Kind.SIGNAL)
        assert (event["a1"], event["actor"], event["step"]) == (platform.pid, Actor.AGENT, 2)
        assert event["phase"] == Phase.AGENT
        platform.wait()  # it ends when it next runs, which may be after the run of whoever killed it
        told.batch = EventBatch.concat([told.batch, box.events()])
        killed = told.one(Kind.EXIT, pid=platform.pid)
        assert (killed["a0"], killed["actor"], killed["step"]) == (15, Actor.PLATFORM, 1)
    finally:
        platform.kill()
        platform.wait()
