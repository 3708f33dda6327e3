"""Hidden paths that are not there: the agent cannot get what the platform puts there while it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from invigilator.profiles.policy import Filesystem, Limits, PhaseRules, Policy, ProtectedClass, Syscalls
from invigilator.sandbox.base import SandboxError

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Box, MakeBox

SECRET = b"the-answer-is-42"
DEEP = "/srv/deep/platform"
POLICY = Policy(name="test", filesystem=Filesystem(hidden=["/platform", DEEP]))

AGENT = """
import contextlib, ctypes, errno, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
held, H = [], {hidden!r}
def hold(path, flags=os.O_RDONLY):
    held.append(os.open(path, flags))
def take(path, fd=None):
    with contextlib.suppress(OSError):
        print(open(os.open(path, os.O_RDONLY, dir_fd=fd)).read(), flush=True)
def attempt(call, *arguments):
    with contextlib.suppress(OSError):
        call(*arguments)
{before}
print("held", flush=True)
sys.stdin.readline()
{after}
for fd in held:
    take("answers", fd)
    take("platform/answers", fd)
    take("deep/platform/answers", fd)
for way in (H, "/gone", "/tmp/mine", "/proc/self/cwd", "/proc/self/root" + H, "/proc/1/root" + H):
    take(way + "/answers")
print("over", flush=True)
"""
"""What an agent tries: `before` the platform writes, and `after` it."""

RACE = """
over = False
def race():
    while not over:
{body}
threads = [threading.Thread(target=race) for _ in range(2)]
[thread.start() for thread in threads]
"""
STOP = "over = True\n[thread.join() for thread in threads]"

WAYS = {
    "a descriptor of its folder": ("os.mkdir(H); hold(H)", ""),
    "a descriptor for its path alone": ("os.mkdir(H); hold(H, os.O_PATH)", ""),
    "its folder as working folder": ("os.mkdir(H); os.chdir(H)", ""),
    "a descriptor of the folder above": ("hold(os.path.dirname(H)); hold('/', os.O_PATH)", ""),
    "a link at the place": ("os.mkdir('/tmp/mine'); os.symlink('/tmp/mine', H)", ""),
    "a file at the place": ("open(H, 'w').close(); hold(H)", ""),
    "a fifo at the place": ("os.mkfifo(H)", ""),
    "its folder moved afterwards": (
        "os.mkdir(H); hold(H)", "attempt(os.rename, H, '/gone'); attempt(os.rename, '/gone', '/tmp/mine')"
    ),
    "its folder removed afterwards": ("os.mkdir(H)", "attempt(os.rmdir, H); attempt(os.mkdir, H)"),
    "exchanged afterwards": (
        "os.mkdir('/gone')", "libc.renameat2(-100, b'/gone', -100, H.encode(), 2)"
    ),
    "hard links": (
        "os.mkdir(H); hold(H)",
        "attempt(os.link, H + '/answers', '/gone'); take('/gone')\n"
        "attempt(lambda: os.link('answers', '/tmp/mine', src_dir_fd=held[0])); take('/tmp/mine')",
    ),
    "a mount over it, or of it": (
        "os.mkdir(H)",
        "os.makedirs('/tmp/mine')\nfor way in ((H, '/tmp/mine'), ('/tmp/mine', H), ('/', '/tmp/mine')):\n"
        "    libc.mount(way[0].encode(), way[1].encode(), None, 4096 | 16384, None)\n"
        "libc.umount2(H.encode(), 2)",
    ),
    "inotify on what is above": (
        "n = libc.inotify_init1(0o4000); libc.inotify_add_watch(n, os.path.dirname(H).encode(), 0x3ff)",
        "attempt(lambda: os.read(n, 65536)); take(H + '/answers')",
    ),
    "a race for what comes": (RACE.format(body="        take(H + '/answers'); attempt(hold, H)"), STOP),
    "a race that moves what comes": (
        RACE.format(
            body="        attempt(os.mkdir, H); attempt(os.rename, H, '/gone')\n"
            "        take('/gone/answers'); attempt(os.rmdir, '/gone')"
        ),
        STOP,
    ),
}  # fmt: skip


@contextmanager
def attacked(box: Box, hidden: str, before: str, after: str) -> Iterator[list[bytes]]:
    """An agent that holds what it can while the body runs; then what it got."""
    told, go = os.pipe2(os.O_CLOEXEC)
    got: list[bytes] = []
    try:
        script = AGENT.format(hidden=hidden, before=before, after=after)
        command, out, err = box.spawn("python3", "-c", script, stdin=told)
        try:
            while b"held" not in b"".join(got):
                part = os.read(out, 4096)
                assert part, os.read(err, 65536)
                got.append(part)
            yield got
            os.write(go, b"\n")
            while part := os.read(out, 65536):
                got.append(part)
            assert b"over" in b"".join(got), os.read(err, 65536)
            assert command.wait(60).code == 0
        finally:
            box.sandbox.end_processes("agent")
            command.wait(60)
            os.close(out), os.close(err)
    finally:
        os.close(told), os.close(go)


def by_the_guard(box: Box, hidden: str) -> None:
    box.sandbox.write_file(f"{hidden}/answers", SECRET)


def by_a_command(box: Box, hidden: str) -> None:
    script = f"mkdir -p {hidden} && echo {SECRET.decode()} > {hidden}/answers"
    done = box.sh(script, actor="platform")
    assert done.code == 0, done.err


@pytest.mark.parametrize("write", [by_the_guard, by_a_command])
@pytest.mark.parametrize("way", WAYS)
def test_what_the_platform_writes_is_out_of_the_agents_reach(make_box: MakeBox, way: str, write) -> None:
    box = make_box(POLICY)
    with attacked(box, "/platform", *WAYS[way]) as got:
        write(box, "/platform")
    assert SECRET not in b"".join(got)
    assert box.sandbox.read_file("/platform/answers").strip() == SECRET
    assert box.sh("cat /platform/answers").code != 0
    assert box.sh("cat /platform/answers", phase="verify").out.strip() == SECRET


@pytest.mark.parametrize("write", [by_the_guard, by_a_command])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("os.mkdir('/srv/deep'); hold('/srv/deep', os.O_PATH); hold('/srv')", ""),
        ("os.makedirs(H); hold(H); os.chdir('/srv/deep')", "take('platform/answers')"),
        (
            "os.makedirs('/tmp/mine/platform'); os.symlink('/tmp/mine', '/srv/deep')",
            "take('/tmp/mine/platform/answers')",
        ),
        (
            "os.mkdir('/srv/deep'); hold('/srv')",
            "attempt(os.rename, '/srv/deep', '/gone'); attempt(os.rename, '/srv', '/tmp/mine')\n"
            "take('/gone/platform/answers'); take('/tmp/mine/deep/platform/answers')",
        ),
        (
            "os.rename('/srv', '/gone'); os.makedirs(H); hold('/gone'); hold(H)",
            "take('/gone/deep/platform/answers')",
        ),
    ],
)  # fmt: skip
def test_nor_by_the_folders_on_the_way(make_box: MakeBox, before: str, after: str, write) -> None:
    box = make_box(POLICY)
    with attacked(box, DEEP, before, after) as got:
        write(box, DEEP)
    assert SECRET not in b"".join(got)
    assert box.sandbox.read_file(f"{DEEP}/answers").strip() == SECRET
    assert box.sh(f"mv {DEEP} /srv/x || mv /srv/deep /srv/x || mv /srv /x").code != 0
    assert box.sandbox.read_file(f"{DEEP}/answers").strip() == SECRET


def test_an_agents_namespaces_of_its_own_hide_no_way(make_box: MakeBox) -> None:
    policy = POLICY.model_copy(update={"syscalls": Syscalls(userns="allow")})
    box = make_box(policy)
    before = (
        "attempt(os.mkdir, H); libc.unshare(0x10000000 | 0x20000); attempt(hold, H); hold('/', os.O_PATH)"
    )
    after = "libc.umount2(H.encode(), 2); attempt(os.rename, H, '/gone')"
    with attacked(box, "/platform", before, after) as got:
        by_a_command(box, "/platform")
    assert SECRET not in b"".join(got)
    assert box.sandbox.read_file("/platform/answers").strip() == SECRET


def test_the_platforms_own_removal_opens_nothing(make_box: MakeBox) -> None:
    """Where the path was there from the start too: its removal would take the agent's cover along."""
    box = make_box(POLICY)
    box.sandbox.write_file("/platform/old", b"1")
    with attacked(box, "/platform", "hold('/', os.O_PATH)", "") as got:
        box.sh(
            f"rm -rf /platform; mkdir -p /platform; echo {SECRET.decode()} > /platform/answers",
            actor="platform",
        )
    assert SECRET not in b"".join(got)
    assert box.sandbox.read_file("/platform/answers").strip() == SECRET


def test_a_covered_file_stays_covered_while_the_platform_replaces_it(make_box: MakeBox) -> None:
    answer = ProtectedClass(paths=["/opt/key.txt"], read="deny", write="deny")
    box = make_box(Policy(name="test", filesystem=Filesystem(protected={"answer": answer})))
    box.sandbox.write_file("/opt/key.txt", SECRET)
    race = RACE.format(body="        take('/opt/key.txt')")
    with attacked(box, "/opt", race, STOP) as got:
        for number in range(20):
            box.sandbox.write_file("/opt/key.txt", b"%s %d" % (SECRET, number))
    assert SECRET not in b"".join(got)


def test_what_setup_left_running_may_fill_it(make_box: MakeBox) -> None:
    policy = POLICY.model_copy(update={"phases": {"agent": PhaseRules(survivors="keep")}})
    box = make_box(policy)
    script = (
        "while ! [ -e /tmp/go ]; do sleep 0.05; done\n"
        f"mkdir -p /platform; echo {SECRET.decode()} > /platform/answers; touch /tmp/done; sleep 600"
    )
    command, out, err = box.spawn("bash", "-c", script, phase="setup", actor="platform")
    wait = (
        "import time\nopen('/tmp/go', 'w').close()\nwhile not os.path.exists('/tmp/done'): time.sleep(0.01)"
    )
    with attacked(box, "/platform", "hold('/', os.O_PATH)", wait) as got:
        pass
    assert SECRET not in b"".join(got)
    box.sandbox.end_processes()
    command.wait(60)
    os.close(out), os.close(err)


def test_a_full_disk_is_told_while_the_agent_runs_and_no_matter_afterwards(make_box: MakeBox) -> None:
    box = make_box(POLICY.model_copy(update={"limits": Limits(disk_bytes=16 << 20)}))
    fill = "attempt(lambda: [open(f'/tmp/{n}', 'wb').write(bytes(1 << 20)) for n in range(64)])"
    devices = "attempt(lambda: [os.mknod(f'/dev/{n}') for n in range(1 << 20)])"
    crumbs = "attempt(lambda: [os.mkdir(f'/tmp/c{n}') for n in range(1 << 20)])"
    full = pytest.raises(SandboxError, match=r"cannot hide /.*platform: No space left")
    with attacked(box, "/platform", f"{fill}\n{devices}\n{crumbs}", ""), full:
        box.sandbox.write_file("/platform/answers", SECRET)
    box.sh("rm -rf /tmp/*")
    box.sandbox.write_file("/platform/answers", SECRET)
    assert box.sh("cat /platform/answers").code != 0
    assert box.sh("cat /platform/answers", phase="verify").out == SECRET


def test_until_the_platform_comes_the_path_is_not_there(make_box: MakeBox, workspace: Path) -> None:
    policy = Policy(name="test", filesystem=Filesystem(hidden=["/platform", "/workspace/.platform"]))
    box = make_box(policy, workspace=workspace)
    assert box.sh("ls -d /platform /workspace/.platform").out == b""
    box.sandbox.write_file("/workspace/done.txt", b"1")
    assert box.sh("ls -d /platform /workspace/.platform").out == b""
    assert b"platform" not in box.sh("ls -a / /workspace", actor="platform").out
    assert list(box.sandbox.changes(["/platform", "/dev", "/workspace/.platform"])) == []
    box.sandbox.write_file("/workspace/.platform/answers", SECRET)
    assert box.sh("cat /workspace/.platform/answers").code != 0
    assert list(box.sandbox.changes(["/platform", "/dev", "/workspace/.platform"])) == []
    box.sandbox.end_processes()
    box.sandbox.copy_back()
    assert sorted(one.name for one in workspace.iterdir()) == ["a.txt", "done.txt", "sub"]


@pytest.mark.parametrize("place", ["ln -s / /platform", "touch /srv/deep", "ln -s /srv/deep /srv/deep"])
def test_what_the_agent_puts_there_neither_stops_nor_misleads(make_box: MakeBox, place: str) -> None:
    box = make_box(POLICY)
    assert box.sh(place).code == 0
    assert box.sh("echo goes on").out == b"goes on\n"
    for hidden in POLICY.filesystem.hidden:
        with attacked(box, hidden, "hold('/', os.O_PATH)", "") as got:
            by_a_command(box, hidden)
        assert SECRET not in b"".join(got)
        assert box.sandbox.read_file(f"{hidden}/answers").strip() == SECRET


def test_a_replaced_link_on_the_way_is_told(make_box: MakeBox) -> None:
    policy = Policy(name="test", filesystem=Filesystem(hidden=["/opt/link/platform"]))
    box = make_box(policy)
    box.sh("mkdir /srv/real; ln -s /srv/real /opt/link", phase="setup")
    box.sh("rm /opt/link; mkdir -p /tmp/mine/platform; ln -s /tmp/mine /opt/link")
    with pytest.raises(SandboxError, match="a link on its way was replaced"):
        box.sandbox.write_file("/opt/link/platform/answers", SECRET)
    assert box.sh("cat /tmp/mine/platform/answers").code != 0


def test_what_the_platform_keeps_there_is_named_by_the_hidden_path(make_box: MakeBox) -> None:
    """The sensor names objects by the mount table."""
    box = make_box(POLICY)
    box.sh("true")
    box.sandbox.write_file("/platform/answers", SECRET)
    found = [one for one in box.sandbox.mounts() if one.mount_point == b"/platform" and one.fs_root != b"/"]
    assert len(found) == 1
    assert box.sandbox.identity("/platform/answers")[0] == found[0].dev
