"""What somebody meets who has a bare install, no root, or no rollout yet: each says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commanding import Guard

NOBODY = 65534
NODE_PACKAGES = (
    "numpy",
    "pyarrow",
    "pyroute2",
    "fastapi",
    "uvicorn",
    "chdb",
    "clickhouse_connect",
    "pandas",
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else: it was not tried")

BARE = f"""
import importlib.machinery, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NODE_PACKAGES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from importlib import util
found = util.find_spec
util.find_spec = lambda name, package=None: None if name in {NODE_PACKAGES!r} else found(name, package)
from invigilator.guard.cli.main import main
sys.argv = ["guard", *sys.argv[1:]]
main()
"""


def bare(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as in an installation without the packages of a node."""
    return subprocess.run(
        [sys.executable, "-c", BARE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "INVIGILATOR_HOME": str(home)},
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("sql", "SELECT 1"),
        ("incidents", "list"),
        ("penalties", "r1"),
        ("replay", "r1"),
        ("eval", "--corpus", "."),
        ("serve",),
        pytest.param(("run", "--", "true"), marks=as_root),
        pytest.param(("up",), marks=as_root),
    ],
)
def test_a_bare_install_says_what_to_install(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = bare(tmp_path / "home", *arguments)
    assert done.returncode == (125 if arguments[0] == "run" else 3), done.stderr
    assert "pip install 'invigilator[node,serve]'" in done.stderr
    assert "unexpected" not in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("version",), ("policy", "list"), ("policy", "show", "swe-task")])
def test_what_needs_no_node_works_bare(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = bare(tmp_path / "home", *arguments)
    assert done.returncode == 0, done.stderr


def let_others_pass(folder: Path) -> None:
    """Pytest's folders are closed to other users."""
    for one in (folder, *folder.parents):
        if not one.stat().st_mode & 0o001:
            one.chmod(one.stat().st_mode | 0o011)
        if one.name.startswith("pytest-of-"):
            break


@as_root
@pytest.mark.usefixtures("open_checkout")
@pytest.mark.parametrize("hidden", [True, False])
def test_somebody_else_is_told_who_can_start_the_service(lonely: Guard, tmp_path: Path, hidden: bool) -> None:
    if not hidden:
        let_others_pass(tmp_path)
    lonely.home.mkdir()
    done = lonely("sql", "SELECT 1", uid=NOBODY)
    assert done.status == 3
    assert "sudo guard up" in done.err and "INVIGILATOR_HOME" in done.err


@as_root
@pytest.mark.usefixtures("open_checkout")
def test_a_folder_of_ones_own_needs_no_root(lonely: Guard, tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    lonely.home.mkdir()
    os.chown(lonely.home, NOBODY, NOBODY)
    quick = Guard(lonely.home, {**lonely.environment, "INVIGILATOR_IDLE_S": "2"})
    done = quick("sql", "SELECT 1 AS one", uid=NOBODY)
    assert (done.status, done.out) == (0, "one\n1\n"), done.err
    assert quick("down", uid=NOBODY).status == 0


def test_an_unknown_rollout_is_told_from_a_penalty(guard: Guard) -> None:
    done = guard("penalties", "no-such-rollout")
    assert re.search(r"^no-such-rollout\t.*\tunavailable\tunknown\tdrop\tno verdict: ", done.out, re.M), (
        done.err
    )


@pytest.mark.parametrize(
    "command", ["incidents list", "penalties", "sql", "queries", "replay", "eval", "bench", "policy explain"]
)
def test_examples_in_help_keep_their_lines(lonely: Guard, command: str) -> None:
    text = lonely(*command.split(), "--help").out
    examples = [line for line in text.splitlines() if line.startswith("    guard ")]
    assert len(examples) >= 2 and all(line.count("guard ") == 1 for line in examples), text
    usage = text.splitlines()[0]
    assert "[[" not in usage and "…" not in usage
