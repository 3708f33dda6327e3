"""Commands behave as without the guard: streams, exit statuses, signals, terminals, limits of output."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING

import pytest

from invigilator.profiles.policy import Limits, Policy
from invigilator.sandbox.base import LimitHit, SandboxError, Streams

if TYPE_CHECKING:
    from conftest import Box, MakeBox


def test_streams_are_binary_clean_and_end(box: Box) -> None:
    payload = bytes(range(256)) * 4096
    source = os.memfd_create("input")
    os.write(source, payload)
    os.lseek(source, 0, os.SEEK_SET)
    result = box.run("cat", stdin=source)
    os.close(source)
    assert result.out == payload and result.code == 0
    assert result.status.output_bytes == len(payload)
    assert not result.status.output_cut


def test_standard_error_is_its_own_stream(box: Box) -> None:
    result = box.sh("echo out; echo err >&2")
    assert (result.out, result.err) == (b"out\n", b"err\n")


@pytest.mark.parametrize(
    ("script", "code", "signal_number", "reason"),
    [
        ("exit 0", 0, 0, "exited"),
        ("exit 7", 7, 0, "exited"),
        ("kill -TERM $$", 143, 15, "signalled"),
        ("kill -KILL $$", 137, 9, "signalled"),
        ("kill -SEGV $$", 139, 11, "signalled"),
        ("exit 300", 44, 0, "exited"),
    ],
)
def test_exit_status_is_as_a_shell_says(
    box: Box, script: str, code: int, signal_number: int, reason: str
) -> None:
    status = box.sh(script).status
    assert (status.code, status.signal, status.reason) == (code, signal_number, reason)


def test_a_missing_command_is_127_and_a_refused_one_126(box: Box) -> None:
    missing = box.run("no-such-command")
    assert missing.code == 127 and b"no-such-command: command not found" in missing.err
    assert box.run("/no/such/file").code == 127
    refused = box.run("/etc/passwd")
    assert refused.code == 126 and b"Permission denied" in refused.err
    assert box.run("/usr").code == 126


def test_a_script_without_a_first_line_is_run_by_a_shell(box: Box) -> None:
    box.sandbox.write_file("/tmp/script", b"echo from $0 with $1\n", 0o755)
    assert box.run("/tmp/script", "an argument").out == b"from /tmp/script with an argument\n"


def test_arguments_of_any_bytes_arrive(box: Box) -> None:
    words = [b"", b" two  spaces ", b"quote'\"", b"new\nline", bytes(range(1, 256)), b"*", b"$HOME"]
    result = box.run(
        "python3", "-c", "import os,sys; os.write(1, os.fsencode('\\0'.join(sys.argv[1:])))", *words
    )
    assert result.out == b"\0".join(words)


def test_ten_megabytes_of_arguments_are_refused_as_the_kernel_does(box: Box) -> None:
    result = box.run("true", *["x" * 100_000] * 100)
    assert result.code == 126 and b"Argument list too long" in result.err


def test_a_nul_byte_is_refused_before_the_start(box: Box) -> None:
    with pytest.raises(SandboxError, match="NUL byte"):
        box.run("echo", "a\0b")


def test_a_missing_working_directory_is_said(box: Box) -> None:
    with pytest.raises(SandboxError, match="working directory"):
        box.run("true", cwd="/nowhere")


def test_output_past_its_limit_is_cut_counted_and_kills_nobody(box: Box) -> None:
    result = box.sh("head -c 5000000 /dev/zero; echo done >&2", output_limit_bytes=1000)
    assert result.code == 0
    assert len(result.out) + len(result.err) == 1000
    assert result.status.output_cut and result.status.output_bytes == 5_000_005


def test_a_reader_that_leaves_ends_the_writer(box: Box) -> None:
    command, out, err = box.spawn("yes")
    assert os.read(out, 10) == b"y\ny\ny\ny\ny\n"
    os.close(out)
    assert command.wait(60).signal == signal.SIGPIPE
    os.close(err)


def test_end_of_input_reaches_the_command(box: Box) -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    command, out, err = box.spawn("wc", "-c", stdin=read)
    os.close(read)
    os.write(write, b"12345")
    os.close(write)
    assert command.wait(30).code == 0
    assert os.read(out, 100) == b"5\n"
    os.close(out), os.close(err)


def test_a_signal_reaches_the_command_and_its_children(box: Box) -> None:
    command, out, err = box.spawn("bash", "-c", "trap 'echo caught; exit 3' INT; echo ready; sleep 60 & wait")
    assert os.read(out, 100) == b"ready\n"
    command.signal(signal.SIGINT)
    assert command.wait(30).code == 3
    assert os.read(out, 100) == b"caught\n"
    os.close(out), os.close(err)


def test_stopping_and_continuing_work(box: Box) -> None:
    script = "trap 'exit 7' CONT; echo ready; while :; do sleep 0.05; done"
    command, out, err = box.spawn("bash", "-c", script)
    assert os.read(out, 100) == b"ready\n"
    stopped: list[int] = []
    command.on_stopped = lambda number: (stopped.append(number), command.signal(signal.SIGCONT))  # type: ignore[func-returns-value]
    command.signal(signal.SIGTSTP)
    assert command.wait(30).code == 7
    assert stopped == [signal.SIGTSTP]
    os.close(out), os.close(err)


def test_a_timeout_ends_everything_first_gently(box: Box) -> None:
    script = "trap 'echo gently' TERM; (trap '' TERM; sleep 7784) & echo ready; while :; do sleep 0.1; done"
    command, out, err = box.spawn("bash", "-c", script)
    assert os.read(out, 100) == b"ready\n"
    assert command.wait(0.1).reason == "timeout"
    with os.fdopen(out, "rb") as rest:  # ends when nobody holds it any more
        assert b"gently" in rest.read()
    os.close(err)
    assert not box.sandbox._groups.processes("agent")


def test_a_background_process_outlives_its_command_and_may_go_on_writing(box: Box) -> None:
    result = box.sh(
        "(for i in 1 2 3 4 5 6 7 8; do echo more; sleep 0.1; done; echo alive >/tmp/proof) & echo done"
    )
    assert result.code == 0 and b"done" in result.out
    assert (
        box.sh("for i in $(seq 150); do cat /tmp/proof 2>/dev/null && break; sleep 0.1; done").out
        == b"alive\n"
    )


def test_opening_dev_stdout_works(box: Box) -> None:
    assert box.sh("echo hello > /dev/stdout; echo oops > /dev/stderr").out == b"hello\n"


class Terminal:
    """A user's terminal: the sandbox's pseudo-terminal is copied to its slave."""

    def __init__(self, box: Box, *command: str, rows: int = 30, columns: int = 100) -> None:
        self.master, slave = pty.openpty()
        mode = termios.tcgetattr(slave)
        mode[0], mode[1], mode[3] = 0, 0, 0
        termios.tcsetattr(slave, termios.TCSANOW, mode)
        streams = Streams(slave, slave, slave, tty=True, rows=rows, columns=columns)
        self.command = box.sandbox.execute(command, phase="agent", streams=streams)
        self.slave = slave
        self.seen = b""

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def expect(self, text: bytes, timeout_s: float = 30.0) -> bytes:
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, self.seen
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, 65536)
        seen, found, self.seen = self.seen.partition(text)
        return seen + found

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


def test_a_terminal_has_a_name_a_size_and_learns_of_a_new_one(box: Box) -> None:
    script = "tty; stty size; trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
    terminal = Terminal(box, "bash", "-c", script)
    assert b"/dev/pts/" in terminal.expect(b"30 100")
    terminal.expect(b"ready")
    terminal.command.resize(50, 120)
    terminal.expect(b"50 120")
    assert terminal.command.wait(30).code == 0
    terminal.close()


def until_sleep_is(box: Box, state: str) -> None:
    """Wait until the sandbox's one `sleep` is in a state of ps(1)'s."""
    script = f"until ps -o state=,comm= -e | grep -qx '{state} sleep'; do :; done"
    assert box.sh(script, timeout_s=30).code == 0


def test_control_c_interrupts_the_foreground_only(box: Box) -> None:
    terminal = Terminal(box, "bash", "--norc", "-i")
    terminal.type(b"PS1='ready> '\n")
    terminal.expect(b"ready> ")
    terminal.type(b"sleep 60\n")
    until_sleep_is(box, "S")
    terminal.type(b"\x03")
    terminal.expect(b"ready> ")
    terminal.type(b"echo code=$?\n")
    terminal.expect(b"code=130")
    terminal.type(b"exit 5\n")
    assert terminal.command.wait(30).code == 5
    terminal.close()


def test_control_z_and_job_control_work_in_a_shell(box: Box) -> None:
    terminal = Terminal(box, "bash", "--norc", "-i")
    terminal.type(b"PS1='ready> '\n")
    terminal.expect(b"ready> ")
    terminal.type(b"sleep 100\n")
    until_sleep_is(box, "S")
    terminal.type(b"\x1a")
    terminal.expect(b"Stopped")
    terminal.expect(b"ready> ")
    terminal.type(b"fg\n")
    until_sleep_is(box, "S")
    box.sh("pkill -x sleep")
    terminal.expect(b"ready> ")
    terminal.type(b"exit 0\n")
    assert terminal.command.wait(30).code == 0
    terminal.close()


def test_control_z_stops_a_lone_command_and_is_reported(box: Box) -> None:
    terminal = Terminal(box, "bash", "-c", "echo ready; exec sleep 100")
    stopped: list[int] = []

    def on_stopped(number: int) -> None:
        stopped.append(number)
        terminal.command.signal(signal.SIGKILL)

    terminal.command.on_stopped = on_stopped  # type: ignore[attr-defined]
    terminal.expect(b"ready")
    terminal.type(b"\x1a")
    assert terminal.command.wait(30).code == 137
    assert stopped == [signal.SIGTSTP]
    terminal.close()


def test_the_users_terminal_is_out_of_reach(box: Box) -> None:
    """TIOCSTI would put characters into the terminal's input: only that of the sandbox can be meant."""
    script = "import fcntl,termios\nfor c in 'evil\\n':\n  fcntl.ioctl(0, termios.TIOCSTI, c.encode())"
    terminal = Terminal(box, "python3", "-c", script)
    terminal.command.wait(60)
    fcntl.fcntl(terminal.slave, fcntl.F_SETFL, os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        os.read(terminal.slave, 10)
    waiting = fcntl.ioctl(terminal.slave, termios.FIONREAD, struct.pack("i", 0))
    assert struct.unpack("i", waiting)[0] == 0
    terminal.close()


def test_out_of_memory_is_told_from_other_kills(make_box: MakeBox) -> None:
    box = make_box(Policy(name="small", limits=Limits(memory_bytes=64 << 20)))
    result = box.run("python3", "-c", "x = b'x' * (300 << 20)")
    assert result.status.reason == "oom" and result.code == 137
    assert "memory" in [hit.limit for hit in box.sandbox.limits_hit()]
    assert box.run("true").code == 0


def test_a_fork_bomb_ends_at_the_limit_and_the_sandbox_can_still_be_ended(make_box: MakeBox) -> None:
    box = make_box(Policy(name="few", limits=Limits(pids=40)))
    bomb = "import os,time\nwhile True:\n  if os.fork() == 0: time.sleep(60)"
    result = box.run("python3", "-c", bomb)
    assert b"Resource temporarily unavailable" in result.err
    assert "pids" in [hit.limit for hit in box.sandbox.limits_hit()]
    box.sandbox.end_processes()
    assert box.run("true", phase="verify").code == 0


def test_a_sandbox_that_wants_more_processor_time_than_it_may_have_is_told_of(make_box: MakeBox) -> None:
    box = make_box(Policy(name="slow", limits=Limits(cpus=0.05)))
    held_back: list[LimitHit] = []
    while not held_back:  # a machine that gives less than that itself holds nobody back
        assert box.sh("for ((i = 0; i < 20000; i++)); do :; done").code == 0
        held_back = [hit for hit in box.sandbox.limits_hit() if hit.limit == "cpu"]
    assert held_back[0].value >= 1 and held_back[0].maximum == 5_000


def test_a_command_says_the_same_as_without_the_guard(box: Box) -> None:
    script = "echo $((6*7)); printf '\\x00\\xff'; ls /usr/bin | head -3; exit 9"
    plain = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    guarded = box.sh(script)
    assert (guarded.out, guarded.code) == (plain.stdout, plain.returncode)
