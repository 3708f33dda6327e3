"""What is wrong is said in one line, with where and what to do, and exit status 125; nothing is started."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest
from conftest import ROOT, Node, Run

needs_root = pytest.mark.skipif(not ROOT, reason="needs root")
pytestmark = needs_root
TRUE = ["true"]


def refused(run: Run, *words: str) -> None:
    """The guard failed, saying all of `words` in one line of stderr, and wrote nothing to stdout."""
    assert run.code == 125, run.said
    assert run.stdout == b""
    lines = run.said.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("guard: "), run.said
    missing = [word for word in words if word not in run.said]
    assert not missing, (missing, run.said)


def policy_file(folder, text):
    file = folder / "policy.yaml"
    file.write_text("version: 1\nname: mine\nextends: base\n" + text)
    return file


def test_an_unknown_policy_is_refused_with_the_names_there_are(node):
    refused(node.run("--policy", "swe-tusk", command=TRUE), "swe-tusk", "swe-task")


def test_a_policy_file_that_is_not_there_is_refused(node, tmp_path):
    refused(node.run("--policy", tmp_path / "none.yaml", command=TRUE), "none.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("filesytem: {hidden: [/x]}\n", ["policy.yaml:4", "filesystem"]),
        ("limits: {memory: 2GB2}\n", ["policy.yaml:4", "2GB2"]),
        ("limits: {ttl: 5 parsecs}\n", ["policy.yaml:4", "parsecs"]),
        ("filesystem: {hidden: [relative/path]}\n", ["policy.yaml:4", "relative/path"]),
    ],
    ids=["key", "size", "time", "path"],
)
def test_a_wrong_policy_is_refused_with_its_line_and_what_to_write(node, tmp_path, text, words):
    refused(node.run("--policy", policy_file(tmp_path, text), command=TRUE), *words)


def test_a_workspace_that_is_a_file_is_refused(node, tmp_path):
    (tmp_path / "file").write_text("")
    refused(node.run("--workspace", tmp_path / "file", command=TRUE), "workspace", "not a folder", "file")


def test_a_workspace_that_is_not_there_is_refused(node, tmp_path):
    refused(node.run("--workspace", tmp_path / "none", command=TRUE), "does not exist", "none")


@pytest.mark.parametrize("place", ["none/report.json", "", "/proc/report.json"])
def test_a_report_that_cannot_be_written_is_refused_before_the_start(node, workspace, tmp_path, place):
    ran = node.guard("run", "-w", workspace, "--report", tmp_path / place, "--", "touch", "/workspace/ran")
    refused(Run(ran.returncode, ran.stdout, ran.stderr, None), "report")
    assert not (workspace / "ran").exists()


def test_a_device_or_a_pipe_is_written_to_and_never_replaced(node, tmp_path):
    device, pipe, link = tmp_path / "null", tmp_path / "pipe", tmp_path / "link"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert node.guard("run", "--report", device, "--", "true").returncode == 0
    assert device.is_char_device()

    os.mkfifo(pipe)
    ran = node.guard("run", "--report", pipe, "--", "true")
    refused(Run(ran.returncode, ran.stdout, ran.stderr, None), "report")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert node.guard("run", "--report", pipe, "--", "true").returncode == 0
    assert json.loads(os.read(reader, 1 << 20))["status"] == "final"
    os.close(reader)
    assert pipe.is_fifo()

    link.symlink_to(tmp_path / "report.json")
    assert node.guard("run", "--report", link, "--", "true").returncode == 0
    assert link.is_symlink() and json.loads((tmp_path / "report.json").read_text())["status"] == "final"


def test_a_full_device_for_the_report_is_said(node, tmp_path):
    full = tmp_path / "full"
    os.mknod(full, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    ran = node.guard("run", "--report", full, "--", "true")
    assert ran.returncode == 125 and b"report cannot be written: No space left" in ran.stderr
    assert full.is_char_device()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e300"])
def test_an_impossible_time_is_refused_before_the_start(node, seconds):
    ran = node.guard("run", "--timeout", seconds, "--", "true")
    refused(Run(ran.returncode, ran.stdout, ran.stderr, None), "--timeout")


def test_a_time_longer_than_poll_can_wait_is_waited_for(node):
    assert node.guard("run", "--timeout", "9e7", "--", "true").returncode == 0


@pytest.mark.parametrize("place", ["report.json", "sub/../report.json", "link/report.json"])
def test_a_report_inside_the_workspace_is_refused_before_the_start(node, workspace, tmp_path, place):
    (workspace / "sub").mkdir()
    (workspace / "link").symlink_to(workspace / "sub")
    ran = node.guard("run", "-w", workspace, "--report", workspace / place, "--", "touch", "/workspace/ran")
    refused(Run(ran.returncode, ran.stdout, ran.stderr, None), "visible inside the sandbox")
    assert not (workspace / "ran").exists()


@pytest.mark.parametrize("options", [["--label", "novalue"], ["--env", "=x"]])
def test_a_pair_without_a_name_or_value_is_refused(node, options):
    refused(node.run(*options, command=TRUE), "NAME=VALUE")


def test_an_unknown_backend_is_refused_with_those_there_are(node):
    run = node.run("--backend", "hovercraft", command=TRUE)
    assert run.code == 125 and "hovercraft" in run.said and "process" in run.said


def test_an_overlong_rollout_id_is_refused(node):
    refused(node.run("--rollout", "x" * 300, command=TRUE), "--rollout:")


@pytest.mark.usefixtures("open_checkout")
def test_without_root_it_says_what_is_missing_and_offline_commands_work(node, tmp_path):
    def as_nobody(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "invigilator.guard.cli.main", *arguments],
            capture_output=True,
            user=65534,
            group=65534,
            extra_groups=(),
            env={**os.environ, "HOME": "/nonexistent", "INVIGILATOR_HOME": str(tmp_path / "none")},
            timeout=180,
            check=False,
        )

    ran = as_nobody("run", "--", "true")
    refused(Run(ran.returncode, ran.stdout, ran.stderr, None), "needs root", "65534")
    shown = as_nobody("policy", "show", "swe-task")
    assert shown.returncode == 0, shown.stderr


def test_a_state_folder_that_cannot_be_made_is_said(node, tmp_path):
    (tmp_path / "file").write_text("")
    run = node.run("--home", tmp_path / "file" / "home", command=TRUE)
    refused(run, "state folder", "INVIGILATOR_HOME")


def test_without_btf_it_says_what_the_kernel_lacks(own_node):
    # The kernel's type information is hidden by an empty mount, in a mount namespace of the test's own.
    hide = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", hide, "-", *own_node.command("run", "--", "true")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=own_node.environment(),
        timeout=180,
        check=False,
    )
    refused(Run(done.returncode, done.stdout, done.stderr, None), "BTF", "CONFIG_DEBUG_INFO_BTF")
    assert own_node.pid("agent") is None


def test_a_failed_start_is_a_failed_report_and_never_a_reward(node, tmp_path):
    report = tmp_path / "report.json"
    ran = node.guard("run", "--report", report, "--backend", "hovercraft", "--", "true")
    told = json.loads(report.read_text())
    assert ran.returncode == 125
    assert told["status"] == "failed" and "hovercraft" in told["failure"]
    assert told["penalty"]["value"] is None and told["penalty"]["drop"]
    assert isinstance(node, Node)
