"""Fork, exec and exit, and who is followed where."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from invigilator.ebpf.events import Actor, EventClass, Flag, Kind, Phase

from .conftest import Box


def test_first_exec_is_the_first_event(make_box: Callable[..., Box]) -> None:
    box = make_box(phase=Phase.SETUP, step=7, actor=Actor.PLATFORM)
    told = box.execute(["/bin/true", "a", ""])
    first = told.event(0)
    assert (first["kind"], first["seq"]) == (Kind.EXEC, 1)
    assert first["path"] == os.fsencode(os.path.realpath("/bin/true"))
    assert first["exe"] == first["path"]
    assert first["path2"] == b"/bin/true"
    assert first["text"] == b"/bin/true\0a\0"
    assert (first["a0"], first["result"], first["nr"]) == (3, 0, 59)
    assert (first["pid"], first["tid"]) == (told.pid, told.pid)
    assert (first["phase"], first["origin_phase"]) == (Phase.SETUP, Phase.SETUP)
    assert (first["step"], first["actor"]) == (7, Actor.PLATFORM)
    assert first["ino"] == Path("/bin/true").stat().st_ino
    assert first["flags"] == Flag.EXECUTABLE
    assert [e["seq"] for e in map(told.event, range(len(told.batch)))] == list(range(1, len(told.batch) + 1))


def test_nothing_is_told_before_arm(make_box: Callable[..., Box]) -> None:
    box = make_box(arm=False)
    assert len(box.execute(["/bin/true"]).batch) == 0
    box.sensor.arm(box.slot)
    assert box.execute(["/bin/true"]).of(Kind.EXEC)


def test_argv_with_an_empty_last_argument_is_exact(box: Box) -> None:
    """C6."""
    for argv in (["a", ""], ["a", "", ""], ["one"], ["a", "", "x"]):
        told = box.run(
            "p = os.fork()\nif not p: os.execv('/bin/true', sys.argv[1:])\nos.waitpid(p, 0)",
            *argv,
            check=False,
        )
        event = told.of(Kind.EXEC)[-1]
        assert event["text"] == b"\0".join(a.encode() for a in argv)
        assert event["a0"] == len(argv)
        assert not event["flags"] & Flag.TEXT_CUT


def test_long_argv_is_cut_and_flagged(box: Box) -> None:
    """C6."""
    told = box.execute(["/bin/true", "x" * 5000])
    event = told.one(Kind.EXEC)
    assert event["text"] == (b"/bin/true\0" + b"x" * 5000)[:4096]
    assert event["flags"] & Flag.TEXT_CUT
    assert event["a0"] == 2


def test_ten_megabytes_of_argv(box: Box) -> None:
    program = "try: os.execv('/bin/true', ['t'] + ['y' * 100000] * 100)\nexcept OSError as e: print(e.errno)"
    told = box.run(program, check=False)
    event = told.of(Kind.EXEC)[-1]
    assert event["result"] == -errno.E2BIG == -int(told.output)
    assert event["flags"] & Flag.TEXT_CUT
    assert event["text"].startswith(b"t\0yyyy")


def test_binary_path_of_kilobytes(box: Box, tmp_path: Path) -> None:
    """C6."""
    folder = tmp_path
    for _ in range(16):
        folder = folder / ("p" * 200)
    folder.mkdir(parents=True)
    (folder / "true").write_bytes(Path("/bin/true").read_bytes())
    (folder / "true").chmod(0o755)
    event = box.execute([folder / "true"]).one(Kind.EXEC)
    assert event["path"] == event["path2"] == bytes(folder / "true")
    assert not event["flags"] & Flag.PATH_CUT


def test_failed_exec_keeps_path_argv_and_errno(box: Box, tmp_path: Path) -> None:
    told = box.run(
        "os.chdir(sys.argv[1])\ntry: os.execv('no/tool', ['tool', 'arg', ''])\nexcept OSError: pass", tmp_path
    )
    event = told.one(Kind.EXEC, result=-errno.ENOENT)
    assert event["path"] == bytes(tmp_path / "no" / "tool")
    assert event["path2"] == b"no/tool"
    assert event["text"] == b"tool\0arg\0"
    assert event["a0"] == 3
    assert event["flags"] == Flag.PATH_USER


def test_script_names_interpreter_and_script(box: Box, tmp_path: Path) -> None:
    script = tmp_path / "run"
    script.write_text("#!/bin/true x\n")
    script.chmod(0o755)
    event = box.execute([script, "y"]).one(Kind.EXEC)
    assert event["path"] == os.fsencode(os.path.realpath("/bin/true"))
    assert event["path2"] == bytes(script)
    assert event["text"] == b"/bin/true\0x\0" + bytes(script) + b"\0y"


def test_memfd_exec_is_flagged(box: Box) -> None:
    """C7: fexecve of a memfd: a memfd flag, and an executable named by its object."""
    told = box.run(
        "m = os.memfd_create('5', 0)\nos.write(m, open('/bin/true', 'rb').read()); os.execve(m, ['5'], {})"
    )
    event = told.of(Kind.EXEC)[-1]
    assert event["flags"] & Flag.MEMFD
    assert event["path"].startswith(b"/memfd:5")
    assert event["path2"].startswith(b"/dev/fd/")
    assert event["text"] == b"5"


def test_fexecve_of_a_file_and_a_digit_for_a_name(box: Box) -> None:
    """C7: the true executable; no false alarm for a comm that is a digit."""
    told = box.run("os.execve(os.open('/bin/true', 0), ['5'], {})")
    event = told.of(Kind.EXEC)[-1]
    assert event["path"] == os.fsencode(os.path.realpath("/bin/true"))
    assert not event["flags"] & (Flag.MEMFD | Flag.DELETED)


def test_fork_names_child_parent_and_flags(box: Box) -> None:
    told = box.run("p = os.fork()\nif not p: os._exit(3)\nprint(p); os.waitpid(p, 0)")
    fork = told.one(Kind.FORK)
    child = int(told.output)
    assert (fork["pid"], fork["tid"], fork["ppid"], fork["result"]) == (child, child, told.pid, child)
    assert fork["class"] == EventClass.PROCESS
    assert fork["parent_start_ns"] == told.of(Kind.EXEC)[0]["start_ns"]
    assert fork["start_ns"] > fork["parent_start_ns"]
    assert fork["a1"] == child
    end = told.one(Kind.EXIT, pid=child)
    assert (end["result"], end["a0"], end["start_ns"]) == (3, 0, fork["start_ns"])


def test_exit_by_signal(box: Box) -> None:
    told = box.run("os.kill(os.getpid(), 9)", check=False)
    event = told.one(Kind.EXIT)
    assert (event["a0"], event["result"]) == (signal.SIGKILL, 0)
    assert not told.of(Kind.SIGNAL)


def test_threads_are_no_processes(box: Box, tmp_path: Path) -> None:
    told = box.run(
        "import threading\n"
        "t = threading.Thread(target=lambda: print(call(2, os.fsencode(sys.argv[1]), 0, 0)))\n"
        "t.start(); t.join()",
        tmp_path / "none",
    )
    assert not told.of(Kind.FORK)
    event = told.one(Kind.OPEN, path2=bytes(tmp_path / "none"))
    assert event["pid"] == told.pid != event["tid"]
    assert event["flags"] & Flag.THREAD
    assert len(told.of(Kind.EXIT)) == 1


def test_fork_and_exec_tell_the_process_s_number_in_its_own_pid_namespace(box: Box) -> None:
    told = box.execute(["/usr/bin/unshare", "--pid", "--fork", "/bin/true"])
    (child,) = told.of(Kind.FORK)
    ran = told.one(Kind.EXEC, pid=int(child["pid"]))
    assert (child["a1"], ran["a1"]) == (1, 1)
    assert child["result"] == child["pid"] != 1


def test_exec_by_a_thread_that_is_not_the_leader(box: Box) -> None:
    """C16: the right pid."""
    told = box.run(
        "import threading\n"
        "t = threading.Thread(target=os.execv, args=('/bin/true', ['true'])); t.start(); time.sleep(9)"
    )
    event = told.of(Kind.EXEC)[-1]
    assert (event["pid"], event["tid"]) == (told.pid, told.pid)
    assert event["flags"] & Flag.THREAD
    assert event["start_ns"] == told.of(Kind.EXEC)[0]["start_ns"]
    assert [e["pid"] for e in told.of(Kind.EXIT)] == [told.pid]


WAYS_TO_BE_BORN = {
    "vfork": "vfork",
    "double fork": "double",
    "clone3": "clone3",
    "setsid": "daemon",
}


@pytest.mark.parametrize("how", sorted(WAYS_TO_BE_BORN))
def test_descendants_stay_in_the_sandbox(
    box: Box, tmp_path: Path, program: Callable[..., Path], how: str
) -> None:
    """C16: vfork, clone3, double fork, setsid: still the same sandbox."""
    told = box.execute([program("born"), WAYS_TO_BE_BORN[how], tmp_path / "mark"])
    event = told.one(Kind.OPEN, path=bytes(tmp_path / "mark"))
    assert event["pid"] != told.pid
    fork = told.one(Kind.FORK, pid=event["pid"])
    assert fork["start_ns"] == event["start_ns"]
    if how == "vfork":
        assert fork["a0"] & 0x4000
    if how == "clone3":
        assert fork["nr"] == 435


def test_process_that_leaves_its_cgroup_stays_followed(box: Box, tmp_path: Path, parent_cgroup: Path) -> None:
    """C16: a process that leaves its cgroup: told, and still watched, with its descendants."""
    away = parent_cgroup / "away"
    away.mkdir()
    try:
        told = box.run(
            "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
            "p = os.fork()\nif not p: open(sys.argv[2], 'w'); os._exit(0)\nos.waitpid(p, 0)",
            away,
            tmp_path / "mark",
        )
        left = told.one(Kind.CGROUP_LEFT)
        assert left["a0"] == away.stat().st_ino
        assert left["pid"] == told.pid
        event = told.one(Kind.OPEN, path=bytes(tmp_path / "mark"))
        assert event["pid"] != told.pid
        assert event["phase"] == Phase.AGENT
    finally:
        away.rmdir()


def test_clone3_into_another_cgroup_stays_followed(
    box: Box, tmp_path: Path, parent_cgroup: Path, program: Callable[..., Path]
) -> None:
    """C16: clone3 into another cgroup."""
    away = parent_cgroup / "away"
    away.mkdir()
    try:
        told = box.execute([program("born"), "clone_into", tmp_path / "mark", away])
        event = told.one(Kind.OPEN, path=bytes(tmp_path / "mark"))
        assert told.one(Kind.FORK)["pid"] == event["pid"] != told.pid
        left = told.one(Kind.CGROUP_LEFT)
        assert (left["a0"], left["pid"]) == (away.stat().st_ino, event["pid"])
    finally:
        away.rmdir()


def test_nested_cgroup_is_inherited(box: Box, tmp_path: Path) -> None:
    """C16: a cgroup made below a watched one is the same sandbox and phase."""
    inner = box.folder / "inner"
    told = box.run(
        "os.mkdir(sys.argv[1]); open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "open(sys.argv[2], 'w')",
        inner,
        tmp_path / "mark",
    )
    assert told.one(Kind.OPEN, path=bytes(tmp_path / "mark"))["phase"] == Phase.AGENT
    assert not told.of(Kind.CGROUP_LEFT)
    enter = inner / "cgroup.procs"
    subprocess.run(["/bin/sh", "-c", f"echo $$ > {enter} && exec /bin/true"], check=True, timeout=10)
    assert box.events().match("path", lambda p: p.endswith(b"/true")).any()


def test_phase_is_the_cgroups_and_origin_is_inherited(box: Box, tmp_path: Path, parent_cgroup: Path) -> None:
    verify = parent_cgroup / "verify-leaf"
    verify.mkdir()
    other = parent_cgroup / "agent-leaf"
    other.mkdir()
    try:
        slot = box.sensor.register(
            uuid.uuid4(), {verify.stat().st_ino: Phase.VERIFY, other.stat().st_ino: Phase.AGENT}
        )
        box.sensor.arm(slot)
        two = Box(box.sensor, other, slot)
        told = two.run(
            "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid())); open(sys.argv[2], 'w')",
            verify,
            tmp_path / "mark",
        )
        event = told.one(Kind.OPEN, path=bytes(tmp_path / "mark"))
        assert (event["phase"], event["origin_phase"]) == (Phase.VERIFY, Phase.AGENT)
        assert not told.of(Kind.CGROUP_LEFT)
        box.sensor.unregister(slot)
    finally:
        verify.rmdir()
        other.rmdir()


def test_credentials_in_argv_are_redacted(box: Box) -> None:
    told = box.execute(
        ["/bin/true", "AKIA" + "A" * 16, "--password=hunter2", "Authorization: Bearer abcdef.ghi", "plain"]
    )
    event = told.one(Kind.EXEC)
    assert event["flags"] & Flag.REDACTED
    assert event["text"] == (
        b"/bin/true\0[redacted]\0--password=[redacted]\0Authorization: Bearer [redacted]\0plain"
    )
    assert not any(b"hunter2" in text for text in told.batch.strings)


def test_the_sensor_never_records_itself(make_box: Callable[..., Box], parent_cgroup: Path) -> None:
    """C17: no feedback loop, even where the sensor's own process is in a watched cgroup."""
    box = make_box()
    home = parent_cgroup.parent
    (box.folder / "cgroup.procs").write_text(str(os.getpid()))
    try:
        Path("/proc/self/stat").read_text()
        assert len(box.events()) == 0
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))


def test_foreign_abis_are_told_once_and_still_read_right(
    box: Box, tmp_path: Path, program: Callable[..., Path]
) -> None:
    """C10: int 0x80: call 5 is open there; the same events, and a fact of its own for the foreign table."""
    told = box.execute([program("int80"), tmp_path / "a", tmp_path / "b"])
    foreign = told.one(Kind.FOREIGN_ABI)
    assert (foreign["abi"], foreign["class"]) == (1, EventClass.PRIVILEGE)
    event = told.one(Kind.OPEN, path=bytes(tmp_path / "a"))
    assert (event["abi"], event["nr"], event["a0"]) == (1, 5, os.O_CREAT | os.O_WRONLY)
    rename = told.one(Kind.RENAME)
    assert (rename["abi"], rename["nr"]) == (1, 38)
    assert (rename["path"], rename["path2"]) == (bytes(tmp_path / "a"), bytes(tmp_path / "b"))
    connect = told.one(Kind.CONNECT)
    assert (connect["abi"], connect["nr"], connect["port"]) == (1, 102, 9)
    assert connect["address"] == b"\0" * 10 + b"\xff\xff\x7f\0\0\x01"


def test_x32_numbers_are_not_taken_for_native_ones(box: Box, tmp_path: Path) -> None:
    told = box.run("print(call(0x40000000 | 2, os.fsencode(sys.argv[1]), 0, 0))", tmp_path / "x")
    foreign = told.one(Kind.FOREIGN_ABI)
    assert (foreign["abi"], foreign["a0"]) == (2, 2)


def test_a_pid_used_again_is_another_process(box: Box) -> None:
    """C19: pid reuse: (pid, start time) names a process."""
    told = box.run(
        "tid = ctypes.c_int(0)\n"
        "def child():\n"
        "    n = tid.value and 1\n"
        "    a = struct.pack('11Q', 0, 0, 0, 0, 17, 0, 0, 0, n and ctypes.addressof(tid), n, 0)\n"
        "    p = call(435, a, 88)\n"
        "    if not p: os._exit(tid.value and 7)\n"
        "    if p > 0: os.waitpid(p, 0)\n"
        "    return p\n"
        "tid.value = child(); print(tid.value, child())"
    )
    first, second = map(int, told.output.split())
    assert first == second > 0
    forks, ends = told.of(Kind.FORK, pid=first), told.of(Kind.EXIT, pid=first)
    assert len({f["start_ns"] for f in forks}) == 2
    assert [f["start_ns"] for f in forks] == [e["start_ns"] for e in ends]
    assert [e["result"] for e in ends] == [0, 7]


def test_times_are_boottime_and_rise_with_the_numbers(box: Box) -> None:
    """C20: a clock that no NTP step moves and that goes on in suspend."""
    began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    told = box.run("for n in range(50): call(2, b'/none', 0, 0)")
    times = told.batch.records["time_ns"].astype(int)
    assert began < times[0] and times[-1] < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert (times[1:] >= times[:-1]).all()


def test_a_cgroup_that_somebody_left_for_can_be_registered(
    box: Box, parent_cgroup: Path, tmp_path: Path
) -> None:
    away = parent_cgroup / "later"
    away.mkdir()
    try:
        box.run("open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))", away)
        slot = box.sensor.register(uuid.uuid4(), {away.stat().st_ino: Phase.VERIFY})
        box.sensor.arm(slot)
        told = Box(box.sensor, away, slot).execute(["/bin/true"])
        assert told.event(0)["phase"] == Phase.VERIFY
        box.sensor.unregister(slot)
    finally:
        away.rmdir()


ENDS_OF_ALL_SORTS = """
import threading
def thread(): os.close(os.open('/etc/hostname', 0))
for at in range(20):
    threads = [threading.Thread(target=thread) for _ in range(3)]
    [one.start() for one in threads], [one.join() for one in threads]
    child = os.fork()
    if not child:
        if at % 2: os.kill(os.getpid(), 9)
        # an exec by a thread that is not the first: the kernel gives it the first one's number
        threading.Thread(target=os.execv, args=('/bin/true', ['true'])).start()
        threading.Event().wait()
    os.waitpid(child, 0)
    os.posix_spawn('/bin/true', ['true'], {}), os.wait()
"""


def test_of_tasks_that_ended_no_place_is_kept(box: Box) -> None:
    """The hook knows a followed task by its stack's place: one too many costs others, one too few blinds."""
    assert box.sensor.followed() == 0
    told = box.run(ENDS_OF_ALL_SORTS + "\nprint('done')")
    assert len(told.of(Kind.FORK)) >= 40
    assert box.sensor.followed() == 0
