"""What each command does, against a real service; and what works without root, kernel or service."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commanding import GUARD, Guard
from samples_cli import HOSTILE, INCIDENT

NOBODY = 4242
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root to become somebody else: it was not tried"
)


def test_incidents_are_listed_by_filters(guard: Guard) -> None:
    kinds = {one["kind"] for one in json.loads(guard("incidents", "list", "--json").out)}
    assert kinds == {"system_binary_overwrite", "reward_forge"}
    for options in (("--rollout", "bad"), ("--kind", "system_binary_overwrite"), ("--run", "run-1")):
        found = json.loads(guard("incidents", "list", "--json", *options).out)
        assert [one["id"] for one in found] == [INCIDENT], options
    assert json.loads(guard("incidents", "list", "--json", "--outcome", "denied").out) == []
    table = guard("incidents", "list").out.splitlines()
    assert table[0].startswith("incident\tkind\tseverity")
    assert len(table) == 3


def test_an_incident_is_shown_and_reviewed(guard: Guard) -> None:
    assert json.loads(guard("incidents", "show", INCIDENT, "--json").out)["evidence"] == [{"path": HOSTILE}]
    done = guard("incidents", "review", INCIDENT[:12], "dismiss", "-m", "the build did it")
    assert done.status == 0, done.err
    shown = guard("incidents", "show", INCIDENT).out
    assert "dismiss the build did it" in shown
    assert json.loads(guard("incidents", "list", "--review", "dismiss", "--json").out)[0]["id"] == INCIDENT


def test_penalties_of_named_and_of_the_latest_rollouts(guard: Guard) -> None:
    found = json.loads(guard("penalties", "bad", "good", "nobody", "--json").out)
    assert [(one["rollout_id"], one["value"], one["status"]) for one in found] == [
        ("bad", -2.0, "final"),
        ("good", 0.0, "final"),
        ("nobody", None, "unavailable"),
    ]
    latest = {one["rollout_id"]: one["value"] for one in json.loads(guard("penalties", "--json").out)}
    assert latest == {"bad": -2.0, "good": 0.0, "partly": None, HOSTILE: -2.0}
    of_run = json.loads(guard("penalties", "--run", "run-2", "--json").out)
    assert [one["rollout_id"] for one in of_run] == [HOSTILE]
    assert "unknown" in guard("penalties").out


def test_sql_prints_tables_json_and_csv(guard: Guard) -> None:
    query = "SELECT rollout_id, status FROM rollouts_current WHERE rollout_id = {r:String}"
    assert json.loads(guard("sql", query, "-p", "r=good", "--json").out) == [
        {"rollout_id": "good", "status": "final"}
    ]
    assert guard("sql", query, "-p", "r=good").out == "rollout_id\tstatus\ngood\tfinal\n"
    rows = list(csv.reader(io.StringIO(guard("sql", query, "-p", f"r={HOSTILE}", "--csv").out, newline="")))
    assert rows[1][0] == HOSTILE
    assert guard("sql", "-", stdin="SELECT 1 AS a").out == "a\n1\n"


def test_ready_made_queries_are_listed_and_run(guard: Guard) -> None:
    assert "rollout_report" in guard("queries").out
    found = json.loads(guard("queries", "rollout_report", "-p", "rollout_id=good", "--json").out)
    assert found[0]["status"] == "final"


def test_tokens_are_made_listed_and_revoked(guard: Guard, served: object) -> None:
    text = guard("token", "create", "--role", "trainer", "--name", "job", "--days", "1").out.strip()
    found = json.loads(guard("token", "list", "--json").out)
    [token] = [one for one in found if one["name"] == "job"]
    assert text.split("_")[1] == token["id"]
    environment = {**guard.environment, "INVIGILATOR_TOKEN": text}
    url = f"http://127.0.0.1:{served.port}"  # type: ignore[attr-defined]
    remote = Guard(guard.home / "none", environment)
    assert json.loads(remote("penalties", "bad", "--server", url, "--json").out)[0]["value"] == -2.0
    refused = remote("sql", "SELECT 1", "--server", url)
    assert (refused.status, "no right to sql" in refused.err) == (1, True)
    assert guard("token", "revoke", token["id"]).status == 0
    assert remote("penalties", "bad", "--server", url).status == 1


def test_a_service_that_is_not_there_has_a_status_of_its_own(lonely: Guard) -> None:
    done = lonely("sql", "SELECT 1", "--server", "http://127.0.0.1:9")
    assert done.status == 4
    assert "does not answer" in done.err


@pytest.fixture
def home_of_nobody() -> Iterator[Path]:
    """A folder of somebody else's; pytest's own are closed to all but root."""
    home = Path(tempfile.mkdtemp(prefix="invigilator-nobody-"))
    os.chown(home, NOBODY, NOBODY)
    yield home
    shutil.rmtree(home)


@needs_root
@pytest.mark.usefixtures("open_checkout")
def test_without_root_offline_commands_work_and_the_rest_says_what_is_missing(home_of_nobody: Path) -> None:
    home = home_of_nobody
    environment = {**os.environ, "HOME": str(home)}
    nobody = Guard(home, environment)
    for arguments in (
        ("policy", "check", "swe-task"),
        ("policy", "explain", "swe-task", "write", "/bin/bash"),
        ("policy", "compile", "swe-task", "--out", str(home / "out")),
        ("version",),
        ("completion", "bash"),
        ("status",),
        ("eval", "--list"),
    ):
        done = nobody(*arguments, uid=NOBODY)
        assert done.status == 0, (arguments, done.err)
    for arguments in (
        ("run", "--", "true"),
        ("agent",),
        ("up",),
        ("eval", "canary_read"),
    ):
        done = nobody(*arguments, uid=NOBODY)
        assert done.status in (3, 4, 125), (arguments, done)
        assert "root" in done.err
        assert len(done.err.splitlines()) == 1
    doctor = nobody("doctor", "--json", uid=NOBODY)
    assert doctor.status == 3
    said = json.loads(doctor.out)
    assert not said["can_run"]
    assert "root" in said["missing"]


def _probes() -> set[str]:
    """Not by `Path.glob`, which fails where others' cgroups vanish under it."""
    inner = {name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names}
    return {name for name in inner if name.startswith("invigilator-probe-")}


def test_doctor_tries_everything_and_leaves_nothing(lonely: Guard) -> None:
    cgroups = Path("/proc/self/mountinfo").read_text().count("cgroup")
    done = lonely("doctor", "--json")
    said = json.loads(done.out)
    assert done.status == (0 if said["can_run"] else 3)
    tiers = {one["tier"] for one in said["findings"]}
    assert tiers == set(said["tiers"])
    for one in said["findings"]:
        assert one["state"] in ("yes", "partly", "no", "unknown")
        assert one["fix"] or one["state"] == "yes", one
    assert Path("/proc/self/mountinfo").read_text().count("cgroup") == cgroups
    left, until = _probes(), time.monotonic() + 60
    while left := left & _probes():  # those of another doctor's go by themselves
        assert time.monotonic() < until, left
        time.sleep(0.05)
    assert not lonely.home.exists()


def test_doctor_agrees_with_the_kernel(lonely: Guard) -> None:
    found = {one["name"]: one for one in json.loads(lonely("doctor", "--json").out)["findings"]}
    assert (found["BTF"]["state"] == "yes") is Path("/sys/kernel/btf/vmlinux").exists()
    assert (found["overlayfs"]["state"] == "yes") is ("overlay" in Path("/proc/filesystems").read_text())
    enabled = Path("/sys/module/apparmor/parameters/enabled")
    assert (found["kernel"]["state"] == "yes") is (enabled.exists() and enabled.read_text().strip() == "Y")


def test_policy_commands_answer_the_engineers_questions(lonely: Guard, tmp_path: Path) -> None:
    assert lonely("policy", "check", "swe-task", "base").status == 0
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("version: 1\nname: wrong\nlimits: {memory: 2GB!, cpu: 1}\n")
    done = lonely("policy", "check", str(wrong))
    assert done.status == 1
    assert f"{wrong}:3:" in done.out
    explained = json.loads(lonely("policy", "explain", "swe-task", "write", "/bin/bash", "--json").out)
    assert (explained["verdict"], explained["phase"]) == ("watched", "agent")
    assert lonely("policy", "diff", "swe-task", "swe-task").status == 0
    differs = lonely("policy", "diff", "swe-task", "no-network")
    assert (differs.status, bool(differs.out)) == (1, True)
    assert json.loads(lonely("policy", "schema").out)["title"] == "Policy"
    out = tmp_path / "artefacts"
    assert lonely("policy", "compile", "swe-task", "--out", str(out)).status == 0
    assert len((out / "seccomp-agent.bpf").read_bytes()) % 8 == 0
    assert json.loads((out / "limits.json").read_text())["pids"] > 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(lonely: Guard, shell: str) -> None:
    script = lonely("completion", shell).out
    assert "_GUARD_COMPLETE" in script
    if shell == "bash":
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=120)
        assert checked.returncode == 0, checked.stderr


def test_there_is_one_way_to_completion(lonely: Guard) -> None:
    assert "completion " in lonely("--help").out and "-completion" not in lonely("--help").out
    assert lonely("--install-completion").status == 2


def test_completion_completes(lonely: Guard) -> None:
    environment = {
        **lonely.environment,
        "_GUARD_COMPLETE": "complete_bash",
        "COMP_WORDS": "guard inc",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [GUARD[0], "-m", GUARD[2]], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.stdout.split() == ["incidents"]


def test_status_starts_nothing(lonely: Guard) -> None:
    said = json.loads(lonely("status", "--json").out)
    assert said["agent"] == {"running": False}
    assert said["serve"] == {"running": False}
    assert not lonely.home.exists()
