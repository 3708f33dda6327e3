"""The command among other tools: pipes, full disks, closed streams, narrow terminals, programs as readers."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commanding import GUARD, Guard

from invigilator.guard.cli.failures import wants_json

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else: it was not tried")


def piped(guard: Guard, words: str, redirect: str) -> subprocess.CompletedProcess[str]:
    """A command as bash runs it."""
    line = f'"$@" {redirect}; echo "${{PIPESTATUS[0]}}" >&2'
    environment = {**guard.environment, "INVIGILATOR_HOME": str(guard.home)}
    return subprocess.run(
        ["bash", "-c", line, "-", *GUARD, *words.split()],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize(
    "words", ["policy show swe-task", "policy list --json", "incidents list", "queries", "--help"]
)
def test_a_reader_that_stops_ends_it_as_it_ends_every_tool(guard: Guard, words: str) -> None:
    # The reader has gone before a word is written.
    done = piped(guard, words, "| exec 0<&-")
    assert done.stderr.strip() == str(128 + signal.SIGPIPE), done.stderr


@pytest.mark.parametrize("words", ["status", "policy show swe-task", "policy list", "--help", "version"])
def test_output_that_cannot_be_written_is_said_in_one_line(guard: Guard, words: str) -> None:
    done = piped(guard, words, ">/dev/full")
    said, status = done.stderr.splitlines()
    assert said == "guard: the output cannot be written: No space left on device; free some space"
    assert status == "1"


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_break_nothing(guard: Guard, redirect: str) -> None:
    done = piped(guard, "policy list", redirect)
    assert "Traceback" not in done.stderr and "unexpected" not in done.stderr
    assert done.stderr.splitlines()[-1:] == ["0"]


ERRORS = [
    (("policy", "show", "none-such"), 1, "none-such"),
    (("policy", "show", "./none.yaml"), 1, "none.yaml"),
    (("incidents", "show", "nobody-knows"), 1, ""),
    (("token", "revoke", "none-such"), 1, ""),
    (("sql", "DROP TABLE x"), 1, ""),
    (("nonsense",), 2, ""),
    (("incidents", "list", "--limit", "-1"), 2, ""),
    (("penalties", "--server", "http://127.0.0.1:1"), 4, "http://127.0.0.1:1"),
]


@pytest.mark.parametrize(("words", "status", "where"), ERRORS, ids=lambda value: str(value))
def test_an_error_is_json_where_json_was_asked_for(
    guard: Guard, words: tuple[str, ...], status: int, where: str
) -> None:
    done = guard(*words, "--json")
    assert (done.status, done.out) == (status, "")
    said = json.loads(done.err)
    assert set(said) == {"message", "where", "fix"}
    assert said["message"] and where in said["where"]
    assert said["message"] in guard(*words).err


def test_a_policy_s_errors_are_all_in_the_json(lonely: Guard, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("version: 1\nname: wrong\nlimits: {memory: 2GB!, cpus: -1}\nfilesytem: {}\n")
    said = json.loads(lonely("policy", "show", str(wrong), "--json").err)
    assert [one["where"].split(":")[1] for one in said["errors"]] == ["3", "3", "4"]
    assert said["message"] == said["errors"][0]["message"]


def test_a_command_s_own_json_is_no_wish_of_ours() -> None:
    assert wants_json(["sql", "--json", "x"])
    assert not wants_json(["run", "--", "tool", "--json"])


def test_an_error_of_a_run_is_json_too(lonely: Guard) -> None:
    done = lonely("run", "--json", "--policy", "none-such", "--", "true")
    assert done.status == 125
    assert set(json.loads(done.err)) == {"message", "where", "fix"}
    done = lonely("run", "--policy", "none-such", "--", "true", "--json")
    assert done.status == 125 and done.err.startswith("guard: ")


def test_what_is_done_to_daemons_and_tokens_is_json_on_request(lonely: Guard) -> None:
    nothing = {"done": "does not run", "pid": None}
    assert json.loads(lonely("down", "--json").out) == {"agent": nothing, "serve": nothing}
    made = json.loads(lonely("token", "create", "--role", "node", "--name", "n", "--no-expiry", "--json").out)
    assert made["token"].startswith(f"inv_{made['id']}_") and made["role"] == "node"
    gone = json.loads(lonely("token", "revoke", made["id"], "--json").out)
    assert gone == {"id": made["id"], "name": "n", "role": "node", "projects": None, "expires_at": None}


WALK = """
import json
from invigilator.guard.cli.main import command

def walk(name, one, parent):
    context = one.context_class(one, info_name=name.split()[-1], parent=parent, **one.context_settings)
    found[name] = one.get_help(context)
    for below, inner in getattr(one, "commands", {}).items():
        walk(f"{name} {below}", inner, context)

found = {}
walk("guard", command(), None)
print(json.dumps(found))
"""


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_every_help_fits_the_terminal(lonely: Guard, columns: int) -> None:
    words = [sys.executable, "-c", WALK]
    environment = {**lonely.environment, "COLUMNS": str(columns)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, check=True)
    texts = json.loads(done.stdout)
    assert len(texts) >= 30
    for name, text in texts.items():
        # What is to be copied keeps its lines.
        shown = re.sub(r"^Examples?:\n(.+\n)+", "", re.sub(r"^  ", "", text, flags=re.M), flags=re.M)
        too_long = [line for line in shown.splitlines() if len(line) > columns]
        assert not too_long, (name, too_long)
        assert not re.search(r"list\[|<str>|<path>|<float|<int", text), name
    assert lonely("run", "--help").out.startswith("Usage: guard run [OPTIONS]")


@pytest.mark.parametrize("group", ["", "policy", "incidents", "token"])
def test_no_command_is_cut_short_in_the_list(lonely: Guard, group: str) -> None:
    _, listed, rows = lonely(*group.split(), "--help").out.partition("Commands:")
    assert listed and "..." not in rows


@pytest.mark.parametrize(
    "words", [("policy", "show", ""), ("policy", "check", " "), ("run", "--policy", "", "--", "x")]
)
def test_an_empty_policy_name_is_said(lonely: Guard, words: tuple[str, ...]) -> None:
    done = lonely(*words)
    assert done.status in (1, 125)
    assert "policy: its name is empty; name one of base," in done.out + done.err


@as_root
@pytest.mark.usefixtures("open_checkout")
@pytest.mark.parametrize(
    "words", [("token", "list"), ("token", "create", "--role", "node", "--name", "x"), ("serve",), ("up",)]
)
def test_somebody_else_is_told_to_become_root(guard: Guard, words: tuple[str, ...]) -> None:
    for folder in (guard.home, *guard.home.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    done = guard(*words, uid=NOBODY)
    assert done.status != 0 and len(done.err.splitlines()) == 1, done
    assert "sudo" in done.err, done.err


SLOW = """
import socket, sys, time
time.sleep(float(sys.argv[2]))
link = socket.socket(socket.AF_UNIX)
link.bind(sys.argv[1])
link.listen()
time.sleep(2)
"""
WAIT = """
import socket, sys
from pathlib import Path
from invigilator.guard import node, notice
from invigilator.guard.home import Home
notice.listen(print)
home = Home(Path(sys.argv[1])).make()
command = [sys.executable, "-c", sys.argv[2], str(home.serve_socket), sys.argv[3]]
node._reach(home, "serve", home.serve_socket, socket.SOCK_STREAM, command).close()
"""


@pytest.mark.parametrize(("start_s", "told"), [(2.5, True), (0.0, False)])
def test_who_waits_for_a_start_is_told_what_for(start_s: float, told: bool) -> None:
    import tempfile

    # A Unix socket's name is short.
    with tempfile.TemporaryDirectory(prefix="wait-") as folder:
        words = [sys.executable, "-c", WAIT, folder, SLOW, str(start_s)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    if told:
        assert done.stdout.splitlines() == ["starting the service (it opens the store): some seconds, once"]
    else:
        assert done.stdout == "" or "some seconds" in done.stdout


BASH = """
set -u
source /dev/stdin <<< "$(guard completion bash)"
ask() {
    COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
    $(complete -p guard | sed 's/.*-F \\([^ ]*\\) .*/\\1/') guard "${COMP_WORDS[COMP_CWORD]}" ""
    printf '%s ' "${COMPREPLY[@]}"; echo
}
ask guard pen
ask guard incidents ""
ask guard policy explain swe-task w
ask guard run --pol
"""


@pytest.fixture
def on_path(tmp_path: Path, lonely: Guard) -> dict[str, str]:
    """An environment in which the command is called `guard`."""
    program = tmp_path / "bin" / "guard"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m invigilator.guard.cli.main "$@"\n')
    program.chmod(0o755)
    return {**lonely.environment, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def test_completion_works_in_bash(on_path: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", BASH], capture_output=True, text=True, timeout=60, env=on_path, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert found == [["penalties"], ["list", "show", "review"], ["write"], ["--policy"]], done


def test_completion_works_in_zsh(on_path: dict[str, str]) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed: its completion was not tried")
    leader, follower = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**on_path, "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(follower)

    def type_until(keys: str, wanted: str) -> None:
        os.write(leader, keys.encode())
        seen, deadline_s = "", time.monotonic() + 40
        while wanted not in seen:
            assert select.select([leader], [], [], deadline_s - time.monotonic())[0], seen
            seen += os.read(leader, 65536).decode()

    try:
        type_until(
            "autoload -U compinit; compinit -u -D; source <(guard completion zsh); print REA''DY\n", "READY"
        )
        type_until("guard pen\t", "guard penalties")
        type_until("\x15guard policy explain swe-task w\t", "swe-task write")
        type_until("\x15guard run --pol\t", "guard run --policy")
    finally:
        shell.kill()
        shell.wait()
        os.close(leader)
