"""`guard run --backend container`: flags, streams, record and verdict of the process backend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def test_a_command_runs_in_the_image_and_its_exit_status_comes_back(node: Any) -> None:
    done = node.run(
        "--env", "MINE=1", command="echo $FROM_IMAGE $MINE; echo bad >&2; readlink /bin/sh; exit 7"
    )
    assert (done.code, done.out) == (7, "yes 1\nbusybox\n")
    assert "bad" in done.said
    assert done.report["penalty"]["value"] == 0
    assert done.report["events"]["lost"] == 0
    assert node.containers() == []


def test_a_terminal_is_the_containers_own(node: Any) -> None:
    done = node.run("--tty", command="test -t 0 && test -t 2 && readlink /proc/self/fd/1; stty size")
    assert done.code == 0, done.said
    assert done.out.split() == ["/dev/pts/0", "24", "80"]


def test_the_workspace_comes_back_and_nothing_else_does(node: Any, workspace: Path) -> None:
    done = node.run("-w", workspace, command="cat hello.txt; echo new >made; rm hello.txt; touch /root/else")
    assert (done.code, done.out) == (0, "hello\n"), done.said
    assert [path.name for path in workspace.iterdir()] == ["made"]


def test_files_of_another_user_are_the_containers_root_s_and_stay_the_users(node: Any) -> None:
    workspace = node.folder / "theirs"
    workspace.mkdir()
    (workspace / "hello.txt").write_text("hello\n")
    node.folder.chmod(0o755)
    for path in (workspace, workspace / "hello.txt"):
        os.chown(path, 1234, 1234)
    done = node.run("-w", workspace, command="stat -c %u hello.txt; echo more >>hello.txt; touch made")
    assert (done.code, done.out) == (0, "0\n"), done.said
    owners = {name: (workspace / name).stat().st_uid for name in ("hello.txt", "made")}
    assert owners == {"hello.txt": 1234, "made": 1234}


def test_phases_follow_each_other_with_the_actors_of_the_process_backend(node: Any, workspace: Path) -> None:
    done = node.run(
        "-w", workspace, "--setup", "echo 1 >order", "--verify", "echo 3 >>order",
        command="echo 2 >>order; (sleep 100 &) ",
    )  # fmt: skip
    assert done.code == 0, done.said
    assert (workspace / "order").read_text() == "1\n2\n3\n"
    phases = [one["name"] for one in done.report["phases"]]
    assert phases == ["setup", "agent", "verify"]


def test_a_misdeed_in_a_container_is_the_incident_that_it_is_in_a_process(node: Any, workspace: Path) -> None:
    done = node.run("-p", "swe-task", "-w", workspace, command="echo x >>/bin/bash; exit 0")
    same = node.guard("run", "-p", "swe-task", "--json", "--", "bash", "-c", "echo x >>/bin/bash; exit 0")
    assert done.code == same.returncode == 0, done.said
    kinds = done.kinds()
    assert kinds
    assert all(kind in same.stderr.decode() for kind in kinds)


def test_root_in_a_container_holds_no_capability_of_the_machine(node: Any) -> None:
    done = node.run(
        command="mount -t tmpfs none /tmp; mknod /tmp/disk b 8 0; cat /proc/1/environ; kill -9 1; echo alive;"
        " echo 1000 >/proc/1/oom_score_adj;"
        " cat /proc/self/uid_map"
    )
    assert done.out.split() == ["alive", "0", "0", "65536"]
    for refused in (
        "mount: permission denied",
        "mknod: /tmp/disk",
        "/proc/1/environ",
        "/proc/1/oom_score_adj",
    ):
        assert refused in done.said


def test_nothing_of_the_guard_s_is_seen_in_a_container(node: Any) -> None:
    done = node.run(command="ls -a /; cat /proc/1/cmdline /proc/self/mountinfo; env")
    assert ".init" not in done.out
    for word in ("invigilator", "guard", str(node.folder)):
        assert word not in done.out


def test_what_the_policy_denies_is_refused_to_the_agent_and_there_for_the_verifier(
    node: Any, workspace: Path
) -> None:
    done = node.run(
        "-p", "swe-task", "-w", workspace, "--setup", "mkdir -p /grader; echo 42 >/grader/answer",
        "--verify", "cat /grader/answer >seen",
        command="cat /grader/answer; ls /grader; echo 43 >/grader/answer; id -u",
    )  # fmt: skip
    assert done.out == "0\n"
    assert done.said.count("Permission denied") + done.said.count("Read-only file system") >= 3, done.said
    assert (workspace / "seen").read_text() == "42\n"
    assert done.report["incidents"]
    assert done.report["enforcement"]["mount"] == "enforce"


def test_too_much_memory_ends_a_command_and_is_told(node: Any, tmp_path: Path) -> None:
    policy = tmp_path / "small.yaml"
    policy.write_text("version: 1\nname: small\nextends: base\nlimits:\n  memory: 64MiB\n")
    done = node.run("-p", policy, command="x=$(head -c 200000000 /dev/zero | tr '\\0' x); exit 0")
    assert done.code == 137
    assert "the command ran out of memory" in done.said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--image", "no/such:image"), "has no image"),
        (("--root", "/usr"), "a container's root is its image's"),
    ],
)
def test_what_cannot_be_is_refused_in_words(node: Any, options: tuple[str, ...], words: str) -> None:
    done = node.run(*options, command="true")
    assert done.code == 125
    assert words in done.said
    assert node.containers() == []


def test_an_image_is_no_matter_of_the_process_backend(node: Any) -> None:
    done = node.guard("run", "--image", "room:1", "--", "true")
    assert done.returncode == 125
    assert b"give --backend container" in done.stderr
