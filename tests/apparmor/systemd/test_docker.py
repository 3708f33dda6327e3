"""The container backend and `guard attach`: systemd as Docker's driver, AppArmor, cgroup v2 alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

IMAGE = "room:1"
SCRIPT = """cat /proc/self/attr/current; grep -c . /proc/self/cgroup; grep Seccomp: /proc/self/status
cat /grader/tests.py; echo x >>/bin/bash; true"""


@pytest.fixture(scope="module")
def run(node: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, dict[str, Any]]:
    """One guarded rollout in a container: output, errors, report."""
    report = tmp_path_factory.mktemp("run") / "report.json"
    done = node.guard(
        "run", "--backend", "container", "--image", IMAGE, "--policy", "swe-task", "--rollout", "driven",
        "--setup", "mkdir -p /grader && echo 42 >/grader/tests.py",
        "--report", report, "--", "sh", "-c", SCRIPT,
    )  # fmt: skip
    assert report.exists(), done.stderr
    assert json.loads(report.read_text())["failure"] is None, done.stderr
    return done.stdout, done.stderr, json.loads(report.read_text())


def test_systemd_is_the_first_process_and_docker_s_driver(daemon: Any) -> None:
    told = daemon.client().info()
    assert Path("/proc/1/comm").read_text().strip() == "systemd"
    assert (told["CgroupDriver"], told["CgroupVersion"]) == ("systemd", "2")
    assert any("apparmor" in one for one in told["SecurityOptions"])


def test_a_command_runs_in_its_profile_under_a_filter(run: tuple[str, str, dict[str, Any]]) -> None:
    out, said, report = run
    profile, hierarchies, filtered = out.splitlines()[:3]
    assert profile.startswith("invigilator") and profile.endswith("(enforce)"), (out, said)
    assert (hierarchies, filtered.split()) == ("1", ["Seccomp:", "2"])
    for tier in ("apparmor", "seccomp", "cgroup"):
        assert report["enforcement"][tier] == "enforce", report["enforcement"]


def test_what_it_did_is_on_record_from_its_first_exec(
    node: Any, run: tuple[str, str, dict[str, Any]]
) -> None:
    report = run[2]
    assert report["status"] == "final" and report["events"]["lost"] == 0, report["events"]
    assert set(report["coverage"].values()) == {"ok"}, report["coverage"]
    found = {(one["kind"], one["outcome"]) for one in report["incidents"]}
    assert ("system_binary_overwrite", "success") in found, found
    assert ("oracle_access", "denied") in found or ("grader_access", "denied") in found, found


def test_too_much_memory_ends_a_command_and_is_told(node: Any, tmp_path: Path) -> None:
    policy = tmp_path / "small.yaml"
    policy.write_text("version: 1\nname: small\nextends: base\nlimits:\n  memory: 64MiB\n")
    done = node.guard(
        "run", "--backend", "container", "--image", IMAGE, "--policy", policy,
        "--", "sh", "-c", "x=$(head -c 200000000 /dev/zero | tr '\\0' x); exit 0",
    )  # fmt: skip
    assert done.returncode == 137, done.stderr
    assert "the command ran out of memory" in done.stderr


def test_a_container_of_somebody_s_is_found_in_its_scope_and_watched(node: Any, daemon: Any) -> None:
    api = daemon.client()
    script = "until [ -e /go ]; do sleep 1; done; echo x >>/bin/bash; until [ -e /end ]; do sleep 1; done"
    host = api.create_host_config(network_mode="none")
    container = api.create_container(IMAGE, ["sh", "-c", script], host_config=host)["Id"]
    api.start(container)
    watch = subprocess.Popen(
        [sys.executable, "-m", "invigilator.guard.cli.main", "attach", "--container", container,
         "-p", "swe-task", "--rollout-id", "theirs", "--phase", "agent", "--json"],
        env={**os.environ, **node.environment()}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert watch.stderr is not None
        heard = watch.stderr.readline()
        for word in ("/go", "/end"):
            api.exec_start(api.exec_create(container, ["touch", word])["Id"])
        out, said = watch.communicate(timeout=600)
    finally:
        watch.kill()
        api.remove_container(container, force=True)
    assert watch.returncode == 0, heard + said
    report = json.loads(out)
    assert report["attached"]["cgroup"] == f"/{daemon.cgroup}/docker-{container}.scope"
    assert not report["attached"]["whole"]
    assert "system_binary_overwrite" in {one["kind"] for one in report["incidents"]}, report["incidents"]
