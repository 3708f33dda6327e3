"""`guard policy compile`, `import`, `explain` and `check` as commands, on profiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from apparmor_asked import needs_parser

from invigilator.profiles import apparmor, library


def guard(*words: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "invigilator.guard.cli.main", "policy", *map(str, words)]
    environment = {"INVIGILATOR_HOME": str(home / "home"), "PATH": "/usr/bin:/usr/sbin:/bin:/sbin"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_compile_prints_a_tiers_artefact_of_a_phase(tmp_path: Path) -> None:
    done = guard("compile", "swe-task", "--phase", "verify", "--tier", "apparmor", home=tmp_path)
    assert done.stdout == apparmor.compile(library.load("swe-task"), "verify").text
    calls = json.loads(guard("compile", "swe-task", "--tier", "seccomp", home=tmp_path).stdout)
    assert {"call": "bpf", "errno": "EPERM", "by": "syscalls.deny.0"} in calls["refused"]
    several = guard("compile", "swe-task", "--tier", "cgroup", "--tier", "network", "--json", home=tmp_path)
    assert set(json.loads(several.stdout)) == {"cgroup", "network"}


def test_compile_writes_the_profiles_of_all_phases(tmp_path: Path) -> None:
    assert guard("compile", "swe-task", "--out", tmp_path / "made", home=tmp_path).returncode == 0
    for phase in ("setup", "agent", "verify"):
        assert (tmp_path / "made" / f"{phase}.apparmor").read_text().startswith("abi <abi/")


def test_import_makes_a_policy_that_can_be_used_and_says_what_became_of_each_rule(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text("profile tool {\n  /srv/** r,\n  owner /x rw,\n  network inet stream,\n}\n")
    out = tmp_path / "tool.yaml"
    done = guard("import", profile, "--out", out, "--base", tmp_path, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{profile}:2:1: policy: /srv/** r" in done.stderr
    assert f"{profile}:3:1: raw: owner /x rw" in done.stderr
    assert "1 policy, 1 given, 1 raw, 0 left out" in done.stderr
    assert library.load(str(out)).apparmor.raw == ["owner /x rw"]
    explained = json.loads(guard("explain", out, "append", "/etc/x", "--json", home=tmp_path).stdout)
    assert (explained["verdict"], explained["tier"]) == ("denied", "apparmor")


def test_a_profile_that_is_none_is_one_line_with_its_place(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text("profile tool {\n  gibberish,\n}\n")
    done = guard("import", profile, home=tmp_path)
    assert done.returncode != 0
    assert done.stdout == ""
    assert f"{profile}:2:1: " in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@needs_parser
def test_check_tells_what_the_parser_says_of_a_raw_rule(tmp_path: Path) -> None:
    policy = tmp_path / "mine.yaml"
    policy.write_text(
        "version: 1\nname: mine\nrequire: [apparmor]\napparmor:\n  raw:\n    - capability nosuch\n"
    )
    done = guard("check", policy, home=tmp_path)
    assert done.returncode == 1
    assert f"{policy}:6:7: apparmor_parser refuses `capability nosuch`" in done.stdout
