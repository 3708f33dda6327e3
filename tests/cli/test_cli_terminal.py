"""What the command prints: tables, JSON, one line of error; text of an agent's never acts on the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess

import pytest
from commanding import GUARD, Guard
from samples_cli import HOSTILE, INCIDENT

from invigilator.guard.cli.output import plain

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(guard: Guard, *arguments: str, columns: int = 200) -> str:
    """What a command writes to a terminal."""
    leader, follower = pty.openpty()
    environment = {
        **guard.environment,
        "INVIGILATOR_HOME": str(guard.home),
        "TERM": "xterm",
        "COLUMNS": str(columns),
    }
    process = subprocess.Popen(
        [*GUARD, *arguments], stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        written += piece
    os.close(leader)
    assert process.wait(timeout=120) == 0
    return written.decode()


LISTS = [
    ("incidents", "list"),
    ("incidents", "show", INCIDENT[:8]),
    ("penalties",),
    ("sql", "SELECT rollout_id, report FROM rollouts_current"),
    ("sql", "SELECT rollout_id FROM rollouts_current", "--csv"),
    ("sql", "SELECT rollout_id FROM rollouts_current", "--json"),
]


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_no_text_acts_on_a_terminal(guard: Guard, arguments: tuple[str, ...]) -> None:
    written = on_a_terminal(guard, *arguments)
    colourless = ESCAPE.sub("", written)
    assert not re.search(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]", colourless)
    assert "\x1b[31m" not in written
    assert "title" in colourless
    assert "[bold]" in colourless or "\\u001b" in colourless
    assert "😄" not in written


@pytest.mark.parametrize("arguments", LISTS[:4], ids=" ".join)
def test_no_text_breaks_a_line_of_a_table(guard: Guard, arguments: tuple[str, ...]) -> None:
    done = guard(*arguments)
    assert done.status == 0, done.err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.out)
    if arguments[1:2] != ("show",):
        lines = done.out.splitlines()
        assert len({line.count("\t") for line in lines}) == 1


@pytest.mark.parametrize("columns", [40, 60])
def test_a_terminal_too_narrow_for_a_table_is_given_every_cell_whole(guard: Guard, columns: int) -> None:
    written = ESCAPE.sub("", on_a_terminal(guard, "incidents", "list", columns=columns)).replace("\r", "")
    assert re.search(r"^kind +system_binary_overwrite$", written, re.M)
    assert re.search(rf"^rollout +{re.escape(plain(HOSTILE))}$", written, re.M)


def test_a_table_fits_a_terminal_of_eighty_columns(guard: Guard) -> None:
    lines = ESCAPE.sub("", on_a_terminal(guard, "incidents", "list", columns=80)).splitlines()
    assert lines[0].split()[:2] == ["incident", "kind"] and max(map(len, lines)) <= 80


def test_json_is_ascii_and_whole(guard: Guard) -> None:
    done = guard("incidents", "list", "--json")
    assert done.out.isascii()
    assert HOSTILE in [one["rollout_id"] for one in json.loads(done.out)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\x1b[0m", "a\\e[0m"),
        (b"/\xff\xfe", "/\\xff\\xfe"),
        ("\udcff", "\\xff"),
        ("\u202e", "\\u202e"),
        ("\x9b", "\\x9b"),
        ("\ud800", "\\ud800"),
        ("é 日本", "é 日本"),
    ],
)
def test_plain_shows_what_a_terminal_would_obey(value: object, shown: str) -> None:
    assert plain(value) == shown


def test_help_teaches(lonely: Guard) -> None:
    done = lonely("--help")
    assert done.status == 0
    assert "guard doctor" in done.out
    assert "Exit status" in done.out


def test_help_imports_nothing_heavy(lonely: Guard) -> None:
    script = (
        "import sys\nfrom invigilator.guard.cli import main\nmain.mount()\n"
        "heavy = {'numpy', 'pandas', 'pyarrow', 'fastapi', 'httpx', 'chdb', 'pydantic', 'rich', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([GUARD[0], "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (("nonsense",), 2, "No such command"),
        (("policy", "explain", "swe-task", "fly", "/x"), 2, "fly"),
        (("policy", "show", "none-such"), 1, "the library has no policy"),
        (("policy", "show", "./none.yaml"), 1, "none.yaml"),
        (("policy", "explain", "swe-task", "write", "relative"), 1, "absolute"),
        (("incidents", "list", "--severity", "bad"), 2, "severity"),
        (("sql", "DROP TABLE x"), 1, "only one SELECT"),
        (("sql", "SELECT 1", "-p", "x"), 2, "NAME=VALUE"),
        (("incidents", "show", "nobody-knows"), 1, "there is no incident"),
        (("replay", "nobody-knows"), 1, "there is no report"),
        (("incidents", "show", INCIDENT[:3]), 1, "at least 6 digits"),
        (("incidents", "list", "--kind", "reward_forg"), 2, "write reward_forge"),
        (("queries", "none-such"), 1, "see `guard queries`"),
        (("token", "revoke", "none-such"), 1, "no token"),
        (("serve", "--listen", "nonsense"), 2, "HOST:PORT"),
        (("eval", "--suite", "/none/such"), 1, "no suite"),
        (("incidents", "show", ""), 2, "it is empty"),
        (("penalties", "a", ""), 2, "it is empty"),
        (("replay", " "), 2, "it is empty"),
        (("token", "create", "--role", "node", "--name", ""), 2, "it is empty"),
        (("penalties", "r", "--wait", "nan"), 2, "--wait"),
        (("penalties", "r", "--wait", "-5"), 2, "--wait"),
        (("incidents", "list", "--limit", "9" * 30), 2, "--limit"),
        (("incidents", "list", "--limit", "0"), 2, "--limit"),
        (("incidents", "list", "--kind", "\udcff"), 2, "UTF-8"),
        (("sql", "SELECT {x:String}"), 1, "Substitution `x` is not set"),
        (("sql", "SELECT 1", "--server", "nonsense"), 1, "write http://HOST:PORT"),
        (("sql", "SELECT 1", "--server", "http://127.0.0.1:1"), 4, "does `guard serve --listen` run there?"),
        (("queries", "../x"), 1, "nothing at this address"),
        (("replay", "good", "--attempt", "7"), 1, "attempt 7"),
        (("policy", "explain", "swe-task", "syscall", "none-such"), 1, "no such system call"),
        (("policy", "compile", "swe-task", "--out", "/dev/null"), 1, "/dev/null"),
        (("policy", "show", "/tmp"), 1, "no regular file"),
        (("serve", "--uid", "0"), 2, "--uid"),
        (("serve", "--idle-timeout", "-3"), 2, "--idle-timeout"),
        (("serve", "--query-time", "nan"), 2, "--query-time"),
        (("token", "create", "--role", "node", "--name", "x", "--days", "1e300"), 2, "--days"),
        (("eval", "--corpus", "/none/such"), 1, "corpus.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_error_is_one_line_with_a_status(
    guard: Guard, arguments: tuple[str, ...], status: int, word: str
) -> None:
    done = guard(*arguments)
    assert (done.status, done.out) == (status, ""), done
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("guard: ")
    assert word in done.err
    assert "Traceback" not in done.err


def test_an_error_shows_hostile_arguments_as_text(guard: Guard) -> None:
    for argument in (b"\xff\xfe", HOSTILE.replace("\0", "").encode(), b"x" * 4000):
        done = guard(b"policy", b"show", argument)
        assert done.status == 1
        assert len(done.err.splitlines()) == 1
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.err)


def test_a_reader_that_goes_away_is_no_error(guard: Guard) -> None:
    environment = {**guard.environment, "INVIGILATOR_HOME": str(guard.home)}
    query = "SELECT number FROM numbers(50000)"
    process = subprocess.Popen(
        [*GUARD, "sql", query], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.wait(timeout=120)
    assert said == b""
