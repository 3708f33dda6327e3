"""A newer parser takes what is written for it: rules of ABI 4.0, which Debian 12's does not know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rig import boot, newer

from invigilator.profiles import library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting it in the place of the parser here needs root"),
]
TESTS = Path(__file__).parents[1] / "unit" / "profiles"
NEW = {"userns", "io_uring", "mqueue"}
COMPILE = """
import json, sys
from pathlib import Path
from invigilator.profiles import library
from invigilator.profiles.apparmor import abi, compile, parser
features, texts = abi.ABI_FOLDER / "4.0", json.load(sys.stdin)
found = {"version": abi.version(abi.find()), "abi": abi.detect().name}
for name, text in texts.items():
    loaded = library.load_text(text) if text else library.load(name)
    for phase in ("setup", "agent", "verify"):
        profile = compile(loaded, phase)
        rows = [row.strip() for row in profile.text.splitlines()]
        new = [row for row in rows if row.rstrip(",").split(" ")[0] in ("userns", "io_uring", "mqueue")]
        sizes = [len(parser.run(profile, kernel)) for kernel in (None, features)]
        found[f"{name} {phase}"] = {"first": rows[0], "new": new, "sizes": sizes}
print(json.dumps(found))
"""
ALLOWING = "version: 1\nname: allowing\nextends: base\nsyscalls: {io_uring: allow, userns: allow}\n"
RAW = """version: 1
name: raw
extends: base
apparmor:
  raw:
    - deny userns
    - audit deny io_uring (sqpoll)
    - mqueue (read, getattr) type=posix "/queue"
"""
REFUSED = "version: 1\nname: refused\nextends: base\napparmor:\n  raw:\n    - mqueue (nosuch)\n"


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return newer.fetch(boot.cache_folder())
    except boot.RigError as why:
        pytest.skip(f"Debian's packages of {newer.SUITE} cannot be had: {why}")


def run(folder: Path, words: list[str | Path], said: str = "") -> subprocess.CompletedProcess[str]:
    command = newer.with_it(folder, [sys.executable, *words])
    return subprocess.run(
        command, input=said, capture_output=True, text=True, timeout=600, check=False, cwd=boot.CHECKOUT
    )


@pytest.fixture(scope="module")
def compiled(folder: Path) -> dict[str, Any]:
    texts = {**dict.fromkeys(library.list_names(), ""), "allowing": ALLOWING, "raw": RAW}
    done = run(folder, ["-c", COMPILE], json.dumps(texts))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_newer_abi_is_written_for_a_parser_that_knows_it(compiled: dict[str, Any]) -> None:
    assert compiled["version"].startswith("4.") and compiled["abi"] == "4.0"


@pytest.mark.parametrize("name", [*library.list_names(), "allowing", "raw"])
@pytest.mark.parametrize("phase", ["setup", "agent", "verify"])
def test_each_policy_compiles_for_it(compiled: dict[str, Any], name: str, phase: str) -> None:
    """For a kernel of unknown features, and for one that mediates all that the ABI knows."""
    one = compiled[f"{name} {phase}"]
    assert one["first"] == "abi <abi/4.0>,"
    assert "mqueue," in one["new"]
    assert all(size > 1000 for size in one["sizes"]) and one["sizes"][0] != one["sizes"][1]


def test_namespaces_and_rings_are_let_where_the_policy_says_so_alone(compiled: dict[str, Any]) -> None:
    assert {"userns,", "io_uring,"} <= set(compiled["allowing agent"]["new"])
    assert compiled["base agent"]["new"] == ["mqueue,"]
    assert compiled["web-browsing agent"]["new"] == ["userns,", "mqueue,"]


def test_what_it_refuses_is_said_of_the_policys_line(folder: Path, tmp_path: Path) -> None:
    policy = tmp_path / "refused.yaml"
    policy.write_text(REFUSED)
    done = run(folder, ["-m", "invigilator.guard.cli.main", "policy", "check", policy])
    assert done.returncode == 1 and f"{policy}:6:7: apparmor_parser refuses" in done.stdout + done.stderr


def test_the_compilers_own_tests_hold_with_it(folder: Path) -> None:
    tests = [
        TESTS / f"test_apparmor_{name}.py" for name in ("profile", "refusals", "cache", "names", "import")
    ]
    done = run(folder, ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *tests])
    assert done.returncode == 0, done.stdout[-5000:]
