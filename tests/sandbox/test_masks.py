"""What the policy denies is denied to the agent's commands, and to nobody else."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from invigilator.profiles.policy import CLASS_DEFAULTS, Filesystem, Policy, ProtectedClass
from invigilator.sandbox.base import CanaryFile, Mount, SandboxError
from invigilator.sandbox.mounts import parse

if TYPE_CHECKING:
    from conftest import Box, MakeBox


def policy_of(**paths: list[str]) -> Policy:
    classes = {
        name: ProtectedClass(paths=some, read=CLASS_DEFAULTS[name][0], write=CLASS_DEFAULTS[name][1])
        for name, some in paths.items()
    }
    return Policy(name="test", filesystem=Filesystem(protected=classes, hidden=["/platform", "/usr/games"]))


PATHS = {
    "grader": ["/grader", "/opt/platform/answers.json"],
    "reward": ["/logs/verifier"],
    "control_socket": ["/run/harness.sock"],
    "harness_log": ["/var/log/harness"],
}


@pytest.fixture
def box(make_box: MakeBox) -> Box:
    made = make_box(policy_of(**PATHS))
    made.sandbox.write_file("/grader/expected.txt", b"42")
    made.sandbox.write_file("/opt/platform/answers.json", b"{}")
    made.sandbox.write_file("/opt/platform/other.txt", b"free")
    made.sandbox.write_file("/logs/verifier/old.txt", b"0")
    return made


@pytest.mark.parametrize(
    "command",
    [
        "cat /grader/expected.txt", "ls /grader", "cat /opt/platform/answers.json",
        "echo 1 > /grader/expected.txt", "echo 1 > /logs/verifier/reward.txt", "rm /logs/verifier/old.txt",
        "chmod 777 /grader", "rm -rf /grader", "mv /grader /gone", "mv /logs /logs2", "mv /opt/platform /p",
        "cat /proc/self/root/grader/expected.txt", "ln /opt/platform/answers.json /tmp/a",
        "mount --bind / /mnt", "umount /grader", "umount -l /logs/verifier", "cat /run/harness.sock",
        "rm -f /run/harness.sock", "echo 1 > /var/log/harness/x", "cat /proc/1/root/grader/expected.txt",
    ],
)  # fmt: skip
def test_the_agent_is_refused(box: Box, command: str) -> None:
    result = box.sh(command)
    assert result.code != 0, result.out
    assert b"42" not in result.out


def test_a_refusal_names_permission_or_a_read_only_file_system(box: Box) -> None:
    assert b"Permission denied" in box.sh("cat /grader/expected.txt").err
    assert b"Read-only file system" in box.sh("echo 1 > /logs/verifier/reward.txt").err


def test_reading_stays_where_only_writing_is_denied(box: Box) -> None:
    assert box.sh("cat /logs/verifier/old.txt").out == b"0"
    assert box.sh("cat /opt/platform/other.txt; echo new > /opt/platform/other.txt").code == 0


def test_setup_verify_and_the_platform_reach_everything(box: Box) -> None:
    assert box.sh("cat /grader/expected.txt; echo s > /logs/verifier/s", phase="setup").out == b"42"
    assert box.run("true").code == 0
    assert box.sh("cat /grader/expected.txt; echo p > /logs/verifier/p", actor="platform").out == b"42"
    assert box.sh("cat /grader/expected.txt; echo v > /logs/verifier/v", phase="verify").out == b"42"
    assert box.sh("cat /logs/verifier/p", phase="verify").out == b"p\n"


def test_what_the_platform_adds_while_the_agent_runs_is_denied_too(box: Box) -> None:
    assert box.run("true").code == 0
    box.sandbox.write_file("/grader/second.txt", b"43")
    box.sandbox.write_file("/opt/platform/answers.json", b"new")
    assert box.sh("cat /grader/second.txt").code != 0
    assert box.sh("cat /opt/platform/answers.json").code != 0


def test_placeholders_go_before_verify_unless_used(make_box: MakeBox) -> None:
    box = make_box(policy_of(reward=["/logs/verifier"], grader=["/tests/secret.json"]))
    assert box.sh("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt").code != 0
    assert box.sh("ls -d /logs/verifier /tests/secret.json", phase="verify").out == b""
    assert box.sh("mkdir /logs/verifier && echo 1 > /logs/verifier/reward.txt", phase="verify").code == 0


def test_the_agent_cannot_look_into_the_platforms_processes(box: Box) -> None:
    command, out, err = box.spawn("sleep", "100", actor="platform", environment={"SECRET": "xyz"})
    box.run("true")
    script = (
        "for p in /proc/[0-9]*; do grep -aq '^sleep' $p/comm && "
        "{ cat $p/root/grader/expected.txt; cat $p/environ; ls -l $p/fd; "
        "cat $p/cwd/../grader/expected.txt; }; done"
    )
    result = box.sh(script)
    assert b"42" not in result.out and b"SECRET" not in result.out
    attach = "import ctypes,sys\nprint(ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0))"
    pid = box.sh("pgrep -x sleep").text.split()[0]
    assert box.run("python3", "-c", attach, pid).out == b"-1\n"
    box.sandbox.end_processes()
    command.wait(60)
    os.close(out), os.close(err)


def test_a_process_of_setup_is_bound_once_the_agent_begins(box: Box) -> None:
    """Else the agent would reach the unmasked tree through its /proc/PID/root."""
    script = "while ! [ -e /tmp/go ]; do sleep 0.05; done; cat /grader/expected.txt > /tmp/found 2>&1"
    command, out, err = box.spawn("bash", "-c", script, phase="setup")
    assert box.sh("touch /tmp/go").code == 0
    command.wait(60)
    assert b"Permission denied" in box.sh("cat /tmp/found").out
    os.close(out), os.close(err)


def test_observing_refuses_nothing(make_box: MakeBox) -> None:
    policy = policy_of(**PATHS).model_copy(update={"mode": "observe"})
    box = make_box(policy)
    box.sandbox.write_file("/grader/expected.txt", b"42")
    assert box.sh("cat /grader/expected.txt; echo 1 > /grader/expected.txt").out == b"42"


def test_hidden_paths_are_not_there(make_box: MakeBox, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("platform/secret", "keep"):
        (root / name).mkdir(parents=True)
    (root / "bin").mkdir()
    policy = policy_of(**PATHS)
    box = make_box(policy, root=root)
    names = [path.name for path in Path(f"/proc/{box.sandbox.init_pid}/root").iterdir()]
    assert "platform" not in names and "keep" in names
    assert list(box.sandbox.changes(["/"])) == []
    usual = make_box(policy)
    assert usual.sh("ls -d /usr/games").code != 0
    assert usual.sh("ls -d /usr/bin").code == 0


def test_a_denied_path_behind_a_link_of_the_agents_is_refused_or_bound(box: Box) -> None:
    """A dangling link in place of a denied path would make the platform write elsewhere."""
    assert box.sh("ln -s /tmp/mine /logs/verifier/../x; ln -sfn /tmp/mine /logs/verifier2").code == 0
    assert box.sh("rm -rf /logs/verifier; ln -s /tmp/mine /logs/verifier; readlink /logs/verifier").out == b""


def test_canaries_look_like_their_neighbours_and_are_no_change(make_box: MakeBox) -> None:
    canaries = [CanaryFile("/usr/share/doc/old/answer.txt", b"wrong"), CanaryFile("/etc/answers.json", b"{}")]
    box = make_box(canaries=canaries)
    assert box.sh("cat /usr/share/doc/old/answer.txt").out == b"wrong"
    assert box.sh("stat -c '%U:%G %a' /etc/answers.json").out == b"root:root 644\n"
    age_s = time.time() - int(box.sh("stat -c %Y /etc/answers.json").text)
    assert age_s > 0.5
    assert list(box.sandbox.changes(["/usr", "/etc"])) == []
    box.sh("echo x >> /etc/answers.json")
    assert [(one.path, one.change) for one in box.sandbox.changes(["/etc"])] == [
        (b"/etc/answers.json", "added")
    ]


def test_a_sandbox_that_is_gone_says_so(box: Box) -> None:
    box.sandbox.remove()
    with pytest.raises(SandboxError, match="gone"):
        box.run("true")
    box.sandbox.remove()


def test_the_mount_table_tells_the_masks_before_the_first_command_meets_them(box: Box) -> None:
    told: list[Sequence[Mount]] = []
    box.sandbox.on_mounts = told.append
    plain = {(one.dev, one.mount_point) for one in box.sandbox.mounts()}
    seen = box.sh("cat /proc/self/mountinfo").out
    assert len(told) == 1, "told once, before the command, and not again where nothing changed"
    assert {(one.dev, one.mount_point) for one in parse(seen)} <= {
        (one.dev, one.mount_point) for one in told[0]
    }
    assert plain <= {(one.dev, one.mount_point) for one in told[0]}
    covered = (b"/opt/platform/answers.json", b"/run/harness.sock")
    roots = {one.mount_point: (one.dev, one.fs_root) for one in told[0] if one.mount_point in covered}
    assert b"/opt/platform/answers.json" in roots
    assert len(set(roots.values())) == len(roots), "no two covered files are one object"
    box.sh("true")
    assert len(told) == 1
