"""`guard attach`: containers that others made and run, by name, by label and by cgroup."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT_S
from docker_daemon import IMAGE

from invigilator.guard.cli.attach import attach
from invigilator.guard.errors import GuardError
from invigilator.profiles import oci
from invigilator.profiles.policy import Policy
from invigilator.sandbox.base import SandboxError

CHEAT = "echo x >>/bin/bash"
UNTIL_END = "until [ -e /end ]; do sleep 0.1; done"


@pytest.fixture(autouse=True)
def allowed(node: Any) -> None:
    """The tests' daemon has a cgroup parent of its own, which this node's list has to name."""
    home = node.folder / "home"
    home.mkdir(exist_ok=True)
    (home / "attachable").write_text(f"# tests\n/{node.daemon.cgroup}/\n")


class Watch:
    """A `guard attach` under way."""

    def __init__(self, node: Any, *options: str | Path) -> None:
        home = {"INVIGILATOR_HOME": str(node.folder / "home"), "INVIGILATOR_IDLE_S": "300"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "invigilator.guard.cli.main", "attach", *options],
            env={**os.environ, **home, "DOCKER_HOST": node.daemon.host},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []

    def hear(self, words: str) -> str:
        """Its next line that holds these words."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError("".join(self.lines))

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Its exit status and output, after a signal if one is given."""
        if number is not None:
            self.process.send_signal(number)
        out, said = self.process.communicate(timeout=TIMEOUT_S)
        self.lines.append(said)
        return self.process.returncode, out

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def watch(node: Any) -> Iterator[Callable[..., Watch]]:
    made: list[Watch] = []

    def begin(*options: str | Path) -> Watch:
        made.append(Watch(node, *options))
        return made[-1]

    yield begin
    for one in made:
        one.stop()


@pytest.fixture
def create(daemon: Any) -> Iterator[Callable[..., str]]:
    """Makes a container as anybody does: `create(script, labels=…)` gives its id."""
    api, made = daemon.client(), []

    def make(script: str, labels: Mapping[str, str] | None = None, tty: bool = False) -> str:
        host = api.create_host_config(network_mode="none")
        one = api.create_container(IMAGE, ["sh", "-c", script], labels=labels, tty=tty, host_config=host)
        made.append(one["Id"])
        return str(one["Id"])

    yield make
    for one in made:
        api.remove_container(one, force=True)


def inside(daemon: Any, container: str, script: str) -> str:
    """What somebody else's `docker exec` says."""
    api = daemon.client()
    made = api.exec_create(container, ["sh", "-c", script])
    said = api.exec_start(made["Id"]).decode()
    assert api.exec_inspect(made["Id"])["ExitCode"] == 0, said
    return str(said)


def end(daemon: Any, container: str) -> None:
    """Let a container end that waits for it: what says so may be ended with it."""
    api = daemon.client()
    api.exec_start(api.exec_create(container, ["touch", "/end"])["Id"])


def cgroup_of(node: Any, container: str) -> str:
    return f"/{node.daemon.cgroup}/{container}"


def test_a_container_that_was_only_created_is_watched_from_its_first_instruction(
    node: Any, daemon: Any, create: Callable[..., str], watch: Callable[..., Watch]
) -> None:
    container = create(f"echo out; {CHEAT}; {UNTIL_END}")
    one = watch(
        "--container", container[:12], "-p", "swe-task", "--rollout-id", "early", "--phase", "agent",
        "-l", "a=b", "--cgroup-parent", f"/{node.daemon.cgroup}", "--json",
    )  # fmt: skip
    one.hear("from its beginning")
    daemon.client().start(container)
    wait_for_events(node, "early")
    end(daemon, container)
    code, out = one.end()
    assert code == 0, one.lines
    report = json.loads(out)
    assert report["backend"] == "attach" and report["failure"] is None
    assert set(report["enforcement"].values()) == {"none"}
    assert report["coverage"] == dict.fromkeys(
        ("process", "file", "network", "privilege", "output"), "ok"
    ) | {"denial": "disabled"}
    assert report["labels"]["a"] == "b" and report["labels"]["image"] == IMAGE
    attached = report["attached"]
    assert attached["whole"] and attached["before"] == [] and attached["cgroup"] == cgroup_of(node, container)
    assert attached["since"] == report["started_at"]
    assert attached["ended"] in ("empty", "removed")
    kinds = [(each["kind"], each["phase"]) for each in report["incidents"] if each["counted"]]
    assert kinds == [("system_binary_overwrite", "agent")]
    assert report["penalty"]["value"] == -2
    query = "SELECT kind, path FROM events_readable WHERE rollout_id = 'early' ORDER BY seq LIMIT 2"
    rows = json.loads(node.guard("sql", "--json", query).stdout)
    assert rows == [{"kind": "phase", "path": ""}, {"kind": "exec", "path": "/bin/busybox"}]
    assert not Path(f"/sys/fs/cgroup/unified{cgroup_of(node, container)}").exists()


def test_of_a_container_that_runs_who_was_there_is_named_followed_and_the_verdict_a_bound(
    node: Any, daemon: Any, create: Callable[..., str], watch: Callable[..., Watch], tmp_path: Path
) -> None:
    container = create(f"until [ -e /go ]; do sleep 0.1; done; {CHEAT}; touch /done; {UNTIL_END}")
    daemon.client().start(container)
    report_file = tmp_path / "verdict.json"
    place = cgroup_of(node, container)
    one = watch("--cgroup", place, "-p", "swe-task", "--rollout", "late", "--report", report_file)
    one.hear("who is there already is named")
    again = node.guard("attach", "--cgroup", place)
    assert again.returncode == 4 and b"watched already" in again.stderr
    refused = node.guard("exec", "late", "--", "true")
    assert refused.returncode == 125 and b"knows of no container" in refused.stderr
    assert node.guard("phase", "late", "agent").returncode == 0
    inside(daemon, container, "touch /go; until [ -e /done ]; do sleep 0.1; done")
    assert node.guard("phase", "late", "verify").returncode == 0
    assert b"phases never go back" in node.guard("phase", "late", "setup").stderr
    end(daemon, container)
    code, _ = one.end()
    assert code == 0, one.lines
    report = json.loads(report_file.read_text())
    assert report["status"] == "partial" and report["coverage"]["file"] == "degraded"
    attached = report["attached"]
    assert not attached["whole"] and attached["since"] == report["started_at"]
    assert attached["before"][0]["command"].startswith("sh -c until [ -e /go ]")
    assert attached["before"][0]["started_at"] < attached["since"]
    assert [each["name"] for each in report["phases"]] == ["unknown", "agent", "verify"]
    kinds = [(each["kind"], each["phase"]) for each in report["incidents"] if each["counted"]]
    assert kinds == [("system_binary_overwrite", "agent")]
    assert report["penalty"]["value"] == -2 and report["penalty"]["bound"]


@pytest.mark.slow
def test_at_an_interrupt_the_watch_ends_and_what_is_watched_goes_on(
    node: Any, daemon: Any, create: Callable[..., str], watch: Callable[..., Watch]
) -> None:
    container = create("sleep 7101")
    daemon.client().start(container)
    for number in range(2):
        rollout = f"held-{number}"
        one = watch("--container", container, "-p", "swe-task", "--json", "--rollout", rollout)
        one.hear("who is there already is named")
        code, out = one.end(signal.SIGINT)
        assert code == 0, one.lines
        report = json.loads(out)
        assert report["attached"]["ended"] == "asked" and report["failure"] is None
        assert (report["status"], report["penalty"]["value"], report["penalty"]["drop"]) == (
            "partial", None, True,
        )  # fmt: skip
    assert daemon.client().inspect_container(container)["State"]["Running"]


def test_a_command_of_the_platform_s_in_somebody_s_container_is_told_as_such(
    node: Any, daemon: Any, create: Callable[..., str], watch: Callable[..., Watch], monkeypatch: Any
) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    container = create("sleep 7102")
    daemon.client().start(container)
    one = watch("--container", container, "--rollout", "told", "--phase", "agent", "--json")
    one.hear("who is there already is named")
    script = "echo $MINE; echo err >&2; exit 3"
    words = ["--as", "platform", "--step", "look", "--env", "MINE=1", "--", "sh", "-c", script]
    done = node.guard("exec", "told", *words)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"1\n", b"err\n")
    inside(daemon, container, "true")
    assert b"cannot be ended from here" in node.guard("exec", "told", "--timeout", "5", "--", "true").stderr
    report = json.loads(one.end(signal.SIGINT)[1])
    assert report["failure"] is None
    query = (
        "SELECT e.actor AS actor, s.step_id AS step_id FROM events_readable e "
        "LEFT JOIN steps s ON s.sandbox_id = e.sandbox_id AND s.step = e.step "
        "WHERE e.rollout_id = 'told' AND e.kind = 'exec' AND e.path = '/bin/busybox' ORDER BY e.seq"
    )
    rows = json.loads(node.guard("sql", "--json", query).stdout)
    assert [(row["actor"], row["step_id"] or "") for row in rows] == [("platform", "look"), ("agent", "")]


def test_containers_with_a_label_are_watched_as_they_come(
    node: Any, daemon: Any, create: Callable[..., str], watch: Callable[..., Watch], tmp_path: Path
) -> None:
    before = create(UNTIL_END, labels={"job": "x"})
    reports = tmp_path / "verdicts"
    one = watch(
        "--label", "job=x", "-p", "swe-task", "--cgroup-parent", f"/{node.daemon.cgroup}",
        "--report", reports, "--phase", "agent", "--json",
    )  # fmt: skip
    api = daemon.client()
    one.hear(f"{before} from its beginning")
    named = create(UNTIL_END, labels={"job": "x", "invigilator.rollout": "theirs"}, tty=True)
    other = create("true", labels={"job": "y"})
    one.hear(f"{named} from its beginning")
    for container in (before, named, other):
        api.start(container)
    for rollout, container in ((before, before), ("theirs", named)):
        wait_for_events(node, rollout)
        end(daemon, container)
    assert one.process.stdout is not None
    told = [json.loads(one.process.stdout.readline()) for _ in range(2)]
    code, rest = one.end(signal.SIGINT)
    assert (code, rest) == (0, ""), one.lines
    assert {each["rollout_id"] for each in told} == {before, "theirs"}
    assert all(each["labels"]["job"] == "x" and each["attached"]["whole"] for each in told)
    for each in told:
        assert_whole(each)
    assert {path.stem for path in reports.iterdir()} == {each["sandbox_id"] for each in told}


def assert_whole(report: dict[str, Any]) -> None:
    """All was seen; of the output, if the machine was not too busy to look at the streams in time."""
    coverage = dict(report["coverage"])
    output = coverage.pop("output")
    assert coverage == dict.fromkeys(("process", "file", "network", "privilege"), "ok") | {
        "denial": "disabled"
    }
    assert (output, report["status"]) in (("ok", "final"), ("degraded", "partial"))
    assert report["penalty"]["bound"] == (output != "ok" and bool(report["penalty"]["value"]))


def wait_for_events(node: Any, rollout: str) -> None:
    """Until the record has an exec of the rollout's: none before the container's mounts are known."""
    query = f"SELECT count() AS n FROM events_readable WHERE rollout_id = '{rollout}' AND kind = 'exec'"
    deadline = time.monotonic() + TIMEOUT_S
    while not json.loads(node.guard("sql", "--json", query).stdout)[0]["n"]:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"cgroup": "/system.slice/sshd.service"}, "is not one that may be watched on this node"),
        ({"cgroup": "/"}, "is not one that may be watched"),
        ({"cgroup": "/PARENT/none"}, "there is no cgroup /PARENT/none"),
        ({"cgroup": "/PARENT/../x"}, "goes up by"),
        ({"container": "none"}, "Docker has no container 'none'"),
        ({}, "nothing is named to watch"),
        ({"cgroup": "/x", "container": "y"}, "give one of them"),
        ({"label": ["x"]}, "'x' is not NAME=VALUE"),
    ],
)
def test_what_cannot_be_watched_is_said_in_words(
    node: Any, named: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", node.daemon.host)
    monkeypatch.setenv("INVIGILATOR_IDLE_S", "300")
    parent = node.daemon.cgroup
    if "cgroup" in named:
        named = {**named, "cgroup": named["cgroup"].replace("PARENT", parent)}
    with pytest.raises((GuardError, SandboxError)) as error:
        attach(**named, home=node.folder / "home")
    assert words.replace("PARENT", parent) in str(error.value)


def test_docker_takes_the_profile_that_a_policy_becomes(daemon: Any) -> None:
    policy = Policy.model_validate({"name": "test", "syscalls": {"deny": ["mkdir", "mkdirat"]}})
    api = daemon.client()
    profile = json.dumps(oci.profile(policy, "agent"))
    host = api.create_host_config(network_mode="none", security_opt=[f"seccomp={profile}"])
    container = api.create_container(IMAGE, ["sh", "-c", "mkdir /new; touch /made"], host_config=host)
    try:
        api.start(container)
        assert api.wait(container, timeout=TIMEOUT_S)["StatusCode"] == 0
        assert b"Operation not permitted" in api.logs(container)
        assert {change["Path"] for change in api.diff(container)} == {"/made"}
    finally:
        api.remove_container(container, force=True)
