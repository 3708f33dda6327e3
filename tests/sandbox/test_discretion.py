"""What is inside cannot read off who watches it, from where, and what."""

from __future__ import annotations

import os
import re
import select
from typing import TYPE_CHECKING

import pytest

from invigilator.profiles.policy import Filesystem, PhaseName, Policy, ProtectedClass
from invigilator.sandbox.base import CanaryFile, Streams

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Box, MakeBox

    from invigilator.sandbox.process import ProcessBackend

PHASES: tuple[PhaseName, ...] = ("setup", "agent", "verify")
PROTECTED = {
    "grader": ProtectedClass(paths=["/grader", "/opt/held/key.json"], read="deny", write="deny"),
    "reward": ProtectedClass(paths=["/logs/score"], read="allow", write="deny"),
}
READ_ALL = (
    "for f in /proc/self/* /proc/1/* /proc/[0-9]*/{comm,cmdline,cgroup,status} /proc/*; do"
    ' [ -f "$f" ] && [ -r "$f" ] || continue;'
    " case $f in */pagemap|*/mem|*/kmsg|*/kpage*|*/clear_refs|*/kcore) continue;; esac;"
    ' timeout 2 head -c 200000 "$f" 2>/dev/null; done; env; hostname; mount 2>/dev/null;'
    " ls -l /proc/self/fd /proc/self/ns"
)
TELLING = (b"invigilator", b"guard-launcher", b"covered", b"denied", b"masked", b"stage")


@pytest.fixture(scope="module")
def shared_policy() -> Policy:
    return Policy(name="test", filesystem=Filesystem(protected=PROTECTED))


@pytest.fixture
def box(shared_box: Box) -> Box:
    return shared_box


@pytest.mark.parametrize("phase", PHASES)
def test_nothing_names_the_guard_the_hosts_folders_or_the_phase(
    box: Box, backend: ProcessBackend, phase: PhaseName
) -> None:
    seen = box.sh(READ_ALL, phase=phase, cwd="/", timeout_s=60).out
    assert b"overlay" in seen and b"Name:\tinit" in seen, "else nothing was read"
    words = re.sub(rb"for f in .*?/proc/self/ns", b"", seen, flags=re.DOTALL)
    telling = [*TELLING, str(backend._home).encode(), str(box.sandbox.spec.sandbox_id).encode()]
    assert [word for word in telling if word in words] == []
    assert b"/%d-" % os.getpid() not in words


@pytest.mark.parametrize("phase", PHASES)
def test_each_command_sees_itself_at_the_root_of_every_cgroup_hierarchy(box: Box, phase: PhaseName) -> None:
    rows = box.sh("cat /proc/self/cgroup", phase=phase).text.splitlines()
    assert rows and {row.split(":", 2)[2] for row in rows} == {"/"}


def test_the_cgroups_of_others_are_numbers_alike_in_every_phase(box: Box) -> None:
    seen = [box.sh("cat /proc/1/cgroup /proc/1/cpuset", phase=phase).text for phase in PHASES]
    assert len(set(seen)) == 1
    paths = [row.split(":", 2)[2] for row in seen[0].splitlines() if ":" in row]
    assert paths and all(re.fullmatch(r"/|(/\.\.)+(/\d+)?", path) for path in paths), paths


def test_a_process_of_an_earlier_phase_is_not_told_which_one_came(box: Box) -> None:
    command, out, err = box.spawn("sleep", "100", phase="verify")
    try:
        seen = box.sh("cat /proc/$(pgrep -x sleep)/cgroup").text
    finally:
        box.sandbox.end_processes("verify")
        command.wait(60)
        os.close(out), os.close(err)
    assert re.search(r"^0::(/\.\.)+/\d+$", seen, re.MULTILINE), seen


def test_all_mounts_have_their_kinds_name_as_source(box: Box) -> None:
    for row in box.sh("cat /proc/self/mountinfo").text.splitlines():
        kind, source = row.partition(" - ")[2].split()[:2]
        assert source == kind, row


def test_init_shows_a_name_and_no_more(box: Box) -> None:
    assert box.sh("cat /proc/1/comm; cat /proc/1/cmdline").out == b"init\ninit\0"
    assert box.sh("cat /proc/cmdline /proc/consoles").out == b""


def test_a_command_inherits_its_three_streams_only(box: Box) -> None:
    look = "import os\nprint([fd for fd in range(3, 4096) if os.path.exists(f'/proc/self/fd/{fd}')])"
    assert box.run("python3", "-c", look).out == b"[]\n"


def test_a_terminal_has_a_usual_name(box: Box) -> None:
    master, slave = os.openpty()
    streams = Streams(slave, slave, slave, tty=True)
    script = "tty; ls /proc/self/fd; echo end"
    command = box.sandbox.execute(["bash", "-c", script], phase="agent", streams=streams)
    assert command.wait(60).code == 0
    text = b""
    while b"end" not in text:  # the kernel hands a terminal's bytes over when it comes to it
        assert select.select([master], [], [], 60)[0], text
        text += os.read(master, 4096)
    os.close(slave), os.close(master)
    assert text.split() == [b"/dev/pts/0", b"0", b"1", b"2", b"3", b"end"]


def test_a_new_process_is_never_seen_under_the_launchers_name(box: Box) -> None:
    look = (
        "import os,time\nseen=set()\nend=time.time()+3\nwhile time.time()<end:\n"
        " for p in os.listdir('/proc'):\n"
        "  if p.isdigit():\n"
        "   try: seen.add(open(f'/proc/{p}/comm').read())\n"
        "   except OSError: pass\n"
        "print(sorted(seen))"
    )
    command, out, err = box.spawn("python3", "-c", look)
    for _ in range(20):
        box.run("true")
    command.wait(20)
    with os.fdopen(out, "rb") as stream:
        seen = stream.read()
    os.close(err)
    assert b"init" in seen and b"guard" not in seen and b"launcher" not in seen


LOOKS = "stat -c '%n %i %Y %y %z %U:%G %a' /etc/*.conf /etc/answers.json"


def test_a_canary_has_the_looks_of_a_neighbour(make_box: MakeBox) -> None:
    box = make_box(canaries=[CanaryFile("/etc/answers.json", b"{}")])
    rows = {row.split()[0]: row.split()[1:] for row in box.sh(LOOKS).text.splitlines()}
    canary = rows.pop("/etc/answers.json")
    modified = int(canary[1])
    assert min(abs(modified - int(row[1])) for row in rows.values()) < 86_400 * 400
    kinds = {row[2:].count("x") or row[3].endswith("000000000") for row in rows.values()}
    assert canary[3].endswith("000000000") in kinds
    assert tuple(canary[-2:]) in {tuple(row[-2:]) for row in rows.values()} | {("root:root", "644")}


def _alike(box: Box) -> list[str]:
    """Files of /etc whose inode number and change time are like the canary's, by inode number."""
    text = box.sh("cd /etc; stat -c '%i %Z %n' *").text
    rows = [(int(ino), int(changed), name) for ino, changed, name in map(str.split, text.splitlines())]
    (own,) = [row for row in rows if row[2] == "answers.json"]
    return [
        name for ino, changed, name in sorted(rows) if abs(ino - own[0]) < 999 and abs(changed - own[1]) < 60
    ]


def test_a_canarys_inode_and_change_time_are_not_alone(make_box: MakeBox) -> None:
    places = set()
    for number in range(4):
        box = make_box(canaries=[CanaryFile("/etc/answers.json", b"%d" % number)])
        assert list(box.sandbox.changes(["/"])) == []
        alike = _alike(box)
        assert len(alike) >= 4, alike
        places.add(alike.index("answers.json"))
    assert len(places) > 1, "neither always the first nor always the last"


def test_companions_are_as_they_were(make_box: MakeBox) -> None:
    look = "cd /etc; find . -maxdepth 1 -type f ! -name answers.json -printf '%p %s %m %u:%g %t\\n' | sort"
    both = look + "; cat $(find . -maxdepth 1 -type f ! -name answers.json | sort) | sha256sum"
    box = make_box(canaries=[CanaryFile("/etc/answers.json", b"{}")])
    assert box.sh(both).out == make_box().sh(both).out


def test_canaries_and_their_companions_do_not_come_home(make_box: MakeBox, workspace: Path) -> None:
    for number in range(5):
        (workspace / "sub" / f"n{number}.txt").write_text(str(number))
    before = {path: (path.stat().st_ino, path.read_text()) for path in (workspace / "sub").iterdir()}
    box = make_box(workspace=workspace, canaries=[CanaryFile("/workspace/sub/key.txt", b"k")])
    assert box.sh("cat sub/key.txt; for n in 0 1 2 3 4; do cat sub/n$n.txt; done").out == b"k01234"
    box.sandbox.copy_back()
    after = {path: (path.stat().st_ino, path.read_text()) for path in (workspace / "sub").iterdir()}
    assert after == before
