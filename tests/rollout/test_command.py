"""A guarded command behaves as it would without the guard: streams, status, signals, terminal, files."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest
from conftest import wait_until


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["bash", "-c", "exit 42"], 42),
        (["no-such-command"], 127),
        (["/no/such/file"], 127),
        (["/etc/hostname"], 126),
        (["/usr"], 126),
        (["bash", "-c", "kill -TERM $$"], 143),
        (["bash", "-c", "kill -KILL $$"], 137),
        (["bash", "-c", "kill -SEGV $$"], 139),
    ],
)
def test_the_exit_status_is_the_commands_own(node, command, code):
    run = node.run(command=command)
    assert run.code == code, run.said
    assert run.report["exit"]["code"] == code
    assert run.report["status"] == "final" and run.report["failure"] is None


def test_a_command_past_its_timeout_ends_with_124(node):
    run = node.run("--timeout", "0.5", command="trap '' TERM; echo begun; while :; do sleep 100; done")
    assert run.code == 124 and run.report["exit"] == {"code": 124, "reason": "timeout"}
    assert run.stdout == b"begun\n"


def test_streams_are_kept_apart_and_whole(node):
    data = bytes(range(256)) * 8192
    run = node.run(command="tee >(cat >&2)", stdin=None, input=data)
    assert run.stdout == data
    assert run.stderr.startswith(data)


def test_arguments_arrive_byte_for_byte(node):
    words = [b"", b"a b", b"quote'\"", b"new\nline", b"\xff\xfe", b"$HOME", b"*", b"--", b"-x", b"{x}@{y}^"]
    run = node.run(command=["printf", "%s\\0", *words])
    assert run.stdout.split(b"\0")[:-1] == words


def test_the_environment_is_the_one_asked_for_and_not_the_guards(node):
    secret = {"MY_SECRET_TOKEN": "xyzzy"}
    run = node.run("--env", "GREETING=hello = world", command=["env"], environment=secret)
    assert b"GREETING=hello = world\n" in run.stdout
    assert b"xyzzy" not in run.stdout and b"INVIGILATOR" not in run.stdout


def test_changes_of_the_workspace_come_back_and_the_rest_does_not(node, workspace):
    done = "cat hello.txt; echo changed > hello.txt; mkdir sub; echo new > sub/new; echo x > /tmp/other"
    run = node.run("--workspace", workspace, command=done)
    assert run.code == 0 and run.stdout == b"hello\n", run.said
    assert (workspace / "hello.txt").read_text() == "changed\n"
    assert (workspace / "sub" / "new").read_text() == "new\n"


def test_with_no_copy_back_the_workspace_stays_as_it_was(node, workspace):
    run = node.run("--workspace", workspace, "--no-copy-back", command="rm hello.txt; touch new")
    assert run.code == 0
    assert [path.name for path in workspace.iterdir()] == ["hello.txt"]


def test_a_pipe_that_nobody_reads_any_more_ends_the_command(node):
    command = " ".join(f"'{word}'" for word in map(str, node.command("run", "--quiet", "--", "yes")))
    piped = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        env=node.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert (piped.stdout, piped.returncode) == (b"y\n", 141), piped.stderr


@pytest.mark.parametrize(
    ("script", "code"), [("echo hi; exit 4", 4), ("echo hi; echo more; sleep 0.2; echo hi", None)]
)
def test_output_that_cannot_be_written_is_told_once_and_the_status_is_the_commands(node, script, code):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            node.command("run", "--quiet", "--setup", "true", "--", "bash", "-c", script),
            env=node.environment(),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=180,
            check=False,
        )
    said = b"guard: the command's output could not be written (No space left on device): some is lost\n"
    assert done.stderr.count(said) == 1, done.stderr
    assert done.returncode == code or code is None


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_standard_stream_is_no_obstacle(node, closed):
    words = map(str, node.command("run", "--quiet", "--", "bash", "-c", "echo hi; echo hi >&2; exit 4"))
    command = " ".join(f"'{word}'" for word in words)
    done = subprocess.run(
        ["bash", "-c", f"{command} {closed}"],
        env=node.environment(),
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert (b"hi\n" in done.stdout) == (closed != ">&-") and (b"hi\n" in done.stderr) == (closed != "2>&-")


def test_setup_and_verify_run_before_and_after_on_stderr_only(node, workspace):
    run = node.run(
        *("--workspace", workspace, "--setup", "echo one > log; echo from-setup"),
        *("--verify", "echo three >> log; cat log; exit 9"),
        command="echo two >> log; echo mine",
    )
    assert run.code == 0 and run.stdout == b"mine\n"
    assert b"from-setup\n" in run.stderr and b"one\ntwo\nthree\n" in run.stderr
    assert (workspace / "log").read_text() == "one\ntwo\nthree\n"
    exits = {phase["name"]: phase["exit"]["code"] for phase in run.report["phases"]}
    assert exits == {"setup": 0, "agent": 0, "verify": 9}


def test_quiet_says_nothing_and_json_says_the_verdict_in_one_line(node):
    quiet = node.guard("run", "--quiet", "--", "true")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")
    told = node.guard("run", "--json", "--label", "k=v", "--", "echo", "out")
    assert told.stdout == b"out\n"
    report = json.loads(told.stderr)
    assert report["labels"] == {"k": "v"} and report["status"] == "final"


def test_without_network_nothing_leaves_whatever_the_policy_says(node):
    ask = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 1)'"
    run = node.run("--policy", "web-browsing", "--no-network", command=ask)
    assert run.code == 1 and (b"unreachable" in run.stderr or b"not permitted" in run.stderr), run.said


def test_a_failed_setup_is_a_failure_of_the_guards_side(node):
    run = node.run("--setup", "exit 5", command=["touch", "/tmp/ran"])
    assert run.code == 125 and "setup" in run.said and "5" in run.said
    assert run.report["status"] == "failed" and run.report["penalty"]["value"] is None


def start(node, tmp_path, script, *options):
    report = tmp_path / "report.json"
    command = node.command("run", "--report", report, *options, "--", "bash", "-c", script)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=node.environment(),
    )
    assert process.stdout.readline() == b"ready\n", process.stderr.read()
    return process, report


def listening(number, heard, *others):
    """A script that says it is ready, and does what is said on a signal; `others` it ignores. (A shell
    forgets an interrupt that comes while it starts a program, if that program does not die of it.)"""
    handlers = "".join(f"signal.signal({int(one)}, signal.SIG_IGN);" for one in others)
    return f"""exec python3 -c '
import os, signal, time
def say(text):
    os.write(1, text + b"\\n")
def heard(*_):
    {heard}
signal.signal({int(number)}, heard); {handlers} say(b"ready")
while True:
    time.sleep(0.05)
'"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_command(node, tmp_path, number):
    process, report = start(node, tmp_path, listening(number, 'say(b"got"); os._exit(77)'))
    process.send_signal(number)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (77, b"got\n"), err
    assert json.loads(report.read_text())["exit"]["code"] == 77


def test_an_interrupted_rollout_ends_with_130_and_is_no_verdict(node, tmp_path):
    process, report = start(node, tmp_path, "echo ready; exec sleep 100")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    told = json.loads(report.read_text())
    assert told["status"] == "failed" and "SIGINT" in told["failure"]
    assert told["penalty"]["value"] is None and told["penalty"]["drop"]


def test_an_interrupt_while_it_is_verified_is_no_success(node, tmp_path):
    process, report = start(node, tmp_path, "echo ready", "--verify", "echo verifying >&2; exec sleep 100")
    while process.stderr.readline() != b"verifying\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 130
    assert json.loads(report.read_text())["status"] == "failed"


def test_a_command_deaf_to_interrupts_can_still_be_ended(node, tmp_path):
    process, _ = start(node, tmp_path, listening(signal.SIGINT, 'say(b"deaf")', signal.SIGTERM))
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"deaf\n"  # two that come before it is awake are one to it
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 137


class Terminal:
    """`guard run` on a pseudo-terminal, as a person runs it."""

    def __init__(self, node, *arguments):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            # A shell writes more than its commands' output to a terminal that can do more.
            environment = node.environment({"TERM": "dumb"})
            os.execve(node.command()[0], list(map(str, node.command(*arguments))), environment)
        self.seen = b""

    def size(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self.master, keys)

    def expect(self, text):
        def seen():
            if text in self.seen:
                return True
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536)
            return text in self.seen

        wait_until(seen, 180)

    def end(self):
        while True:
            try:
                part = os.read(self.master, 65536)
            except OSError:
                break
            if not part:
                break
            self.seen += part
        _, status = os.waitpid(self.pid, 0)
        os.close(self.master)
        return os.waitstatus_to_exitcode(status)


def test_a_terminal_is_a_terminal_with_its_size_and_its_changes(node):
    shell = Terminal(node, "run", "--quiet", "--", "bash", "--norc", "-i")
    shell.size(33, 111)
    shell.type(b"tty; stty size\n")
    shell.expect(b"/dev/pts/")
    shell.size(44, 122)
    shell.type(b"until stty size | grep '44 122'; do sleep 0.05; done; exit 5\n")
    shell.expect(b"\n44 122")
    assert shell.end() == 5


def test_an_interrupt_key_ends_the_command_in_the_terminal_and_not_the_shell(node):
    shell = Terminal(node, "run", "--quiet", "--", "bash", "--norc", "-i")
    shell.type(b"echo re''ady; sleep 100\n")
    shell.expect(b"ready")
    time.sleep(0.3)
    shell.type(b"\x03")
    shell.type(b"echo still-$((40+2)); exit 6\n")
    shell.expect(b"still-42")
    assert shell.end() == 6


def test_ten_megabytes_of_arguments_are_refused_as_by_a_shell(node):
    code = (
        "import sys; from invigilator import SyncSandbox\n"
        "with SyncSandbox.create(policy='base') as box:\n"
        "    one = box.exec(['echo', 'x' * 10_000_000])\n"
        "    many = box.exec(['echo', *['y' * 1000] * 10_000])\n"
        "    print(one.exit_code, many.exit_code, box.exec('echo alive').stdout, box.verdict().status)\n"
    )
    done = subprocess.run(
        [node.command()[0], "-c", code], env=node.environment(), capture_output=True, timeout=180, check=False
    )
    assert done.stdout.split() == [b"126", b"126", b"alive", b"final"], done.stderr


def test_paths_of_four_thousand_bytes_and_names_of_any_bytes_come_back(node, workspace):
    script = (
        "import os\n"
        "for name in (b'sp ace', b'new\\nline', b'quo\\'te\\\"', b'\\xff\\xfe', b'{x}@{y}[z]^,', b'-rf'):\n"
        "    open(b'/workspace/' + name, 'wb').write(name)\n"
        "os.chdir('/workspace')\n"
        "for _ in range(16):\n"
        "    os.mkdir('d' * 240); os.chdir('d' * 240)\n"
        "open('leaf', 'w').write('deep')\n"
    )
    run = node.run("--workspace", workspace, command=["python3", "-c", script])
    assert run.code == 0, run.said
    names = {os.fsencode(path.name) for path in workspace.iterdir()}
    assert {b"sp ace", b"new\nline", b"quo'te\"", b"\xff\xfe", b"{x}@{y}[z]^,", b"-rf"} <= names
    deep = workspace.joinpath(*["d" * 240] * 15)
    folder = os.open(deep, os.O_PATH)
    try:
        assert Path(f"/proc/self/fd/{folder}", "d" * 240, "leaf").read_text() == "deep"
    finally:
        os.close(folder)
