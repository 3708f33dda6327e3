"""Daemons on demand, and their death at any moment: nothing acknowledged is lost, nothing is left behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Node, alive, new_node, wait_until

from invigilator import GuardError, SyncSandbox


def ask(node: Node, sql: str) -> list[dict[str, object]]:
    """Rows of a query, as the command answers it."""
    done = node.guard("sql", "--json", sql)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["rows"] if isinstance(answer, dict) else answer


def begin(node: Node, script: str, *options: str, stdin: bool = False) -> subprocess.Popen[bytes]:
    """A `guard run` whose command has said that it is ready."""
    process = subprocess.Popen(
        node.command("run", *options, "--", "bash", "-c", "echo ready; " + script),
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=node.environment(),
    )
    assert process.stdout.readline() == b"ready\n", process.stderr.read()
    return process


def of_sandboxes(marker: str) -> list[int]:
    """Processes of this machine that have `marker` among their arguments, `guard run` itself excepted."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes()
                if marker.encode() in words and b"invigilator" not in words:
                    found.append(int(folder.name))
    return found


def init_of(pid: int) -> int:
    """Host's process id of the first process in the pid namespace of `pid`."""
    space = Path(f"/proc/{pid}/ns/pid").readlink()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            first = re.search(r"^NSpid:.*\t1$", (folder / "status").read_text(), re.MULTILINE)
            if first and (folder / "ns/pid").readlink() == space:
                return int(folder.name)
    raise AssertionError("no init")


def cgroups(pid: int) -> list[Path]:
    """Cgroup folders of sandboxes that the agent of that process id made."""
    return folders_of(pid, r"/[^/]+/[^/]+-[^/]+-[^/]+")


def folders_of(pid: int, below: str) -> list[Path]:
    """Cgroup folders `below` that agent's own. Not by `Path.glob`: it fails where others' vanish under it."""
    wanted = re.compile(rf".*/invigilator/{pid}-[^/]+{below}")
    return [Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup") if wanted.fullmatch(folder)]


def test_many_runs_from_nothing_share_one_agent_and_one_serve(own_node):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda n: own_node.run("--rollout", f"r{n}", command=f"echo {n}"), range(4)))
    assert [run.stdout for run in runs] == [b"0\n", b"1\n", b"2\n", b"3\n"], [run.said for run in runs]
    assert own_node.pid("agent") and own_node.pid("serve")
    log = (own_node.home.run / "agent.log").read_text()
    assert "runs here already" not in log and "Traceback" not in log
    assert ask(own_node, "SELECT count() AS n FROM rollouts WHERE status = 'final'") in (
        [{"n": 4}],
        [{"n": "4"}],
    )


def test_daemons_end_when_idle_and_come_back_when_needed(own_node):
    impatient = {"INVIGILATOR_IDLE_S": "1"}
    assert own_node.run(command=["true"], environment=impatient).code == 0
    first = own_node.pid("agent")
    wait_until(lambda: first is None or not alive(first), 180)
    assert not own_node.home.agent_socket.exists()
    run = own_node.run(command=["true"], environment=impatient)
    assert run.code == 0 and run.report["status"] == "final"


def test_a_killed_run_leaves_nothing_and_is_reported_as_failed(node):
    process = begin(node, "exec sleep 7771", "--rollout", "killed-run")
    process.kill()
    process.communicate()
    wait_until(lambda: not of_sandboxes("7771"), 180)
    wait_until(lambda: not list(node.home.rollouts.iterdir()), 180)
    wait_until(lambda: not cgroups(node.pid("agent")), 180)
    rows = ask(node, "SELECT status, failure FROM rollouts WHERE rollout_id = 'killed-run'")
    assert len(rows) == 1 and rows[0]["status"] == "failed" and "went away" in str(rows[0]["failure"])


def test_an_interrupted_run_leaves_nothing(node):
    process = begin(node, "(trap '' INT; exec sleep 7776) & exec sleep 7776", "--rollout", "interrupted")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 130
    assert not of_sandboxes("7776")
    assert not list(node.home.rollouts.iterdir()) and not cgroups(node.pid("agent"))


def test_a_killed_agent_takes_its_sandboxes_along_and_the_run_says_so(own_node, tmp_path):
    report = tmp_path / "report.json"
    options = ("--rollout", "orphan", "--report", str(report))
    process = begin(
        own_node, "for n in $(seq 200); do cat /etc/passwd >/dev/null; done; exec sleep 7772", *options
    )
    counted = "SELECT count() AS n, uniqExact(seq) AS u FROM events WHERE rollout_id = 'orphan'"
    wait_until(lambda: int(str(ask(own_node, counted)[0]["n"])) > 200, 180)
    agent = own_node.pid("agent")
    os.kill(agent, signal.SIGKILL)
    _, said = process.communicate(timeout=180)
    assert process.returncode == 125
    assert b"agent has ended" in said and b"sandbox with it" in said
    assert json.loads(report.read_text())["status"] == "failed"
    wait_until(lambda: not of_sandboxes("7772"), 180)

    assert own_node.run(command=["true"]).code == 0
    wait_until(lambda: not cgroups(agent), 180)
    rows = ask(own_node, "SELECT status, failure FROM rollouts WHERE rollout_id = 'orphan'")
    assert len(rows) == 1 and rows[0]["status"] == "failed" and "died" in str(rows[0]["failure"])
    stored = ask(own_node, counted)
    assert int(str(stored[0]["n"])) == int(str(stored[0]["u"])) > 200
    assert not list(own_node.home.rollouts.iterdir())


def test_an_agent_whose_cgroup_was_removed_ends_and_the_next_works(own_node):
    assert own_node.run(command=["true"]).code == 0
    agent = own_node.pid("agent")
    folders = folders_of(agent, r"/[^/]+")
    assert folders
    for folder in folders:
        wait_until(lambda folder=folder: not any(one.is_dir() for one in folder.iterdir()), 180)
        folder.rmdir()
    wait_until(lambda: not alive(agent), 180)
    assert own_node.run(command=["true"]).code == 0


def test_a_killed_init_is_the_machines_failure_and_no_exit_of_the_agents(node, tmp_path):
    report = tmp_path / "report.json"
    process = begin(node, "exec sleep 7774", "--rollout", "no-init", "--report", str(report))
    [command] = of_sandboxes("7774")
    os.kill(init_of(command), signal.SIGKILL)
    _, said = process.communicate(timeout=180)
    assert process.returncode == 125 and b"init was killed" in said, said
    told = json.loads(report.read_text())
    assert told["status"] == "failed" and told["penalty"]["value"] is None and told["penalty"]["drop"]


def test_a_verdict_that_was_told_is_not_contradicted_by_the_next_agent(own_node, monkeypatch):
    for name, value in own_node.environment().items():
        monkeypatch.setenv(name, value)
    box = SyncSandbox.create(rollout_id="told")
    with contextlib.suppress(GuardError), box:
        box.exec("true")
        assert box.verdict().status == "final"
        os.kill(own_node.pid("agent"), signal.SIGKILL)
    assert own_node.run(command=["true"]).code == 0
    rows = ask(own_node, "SELECT status FROM rollouts WHERE rollout_id = 'told'")
    assert [row["status"] for row in rows] == ["final"]


def test_a_serve_that_is_killed_again_and_again_loses_and_doubles_nothing(own_node):
    own_node.run(command=["true"])
    stop = threading.Event()

    def kill_serve() -> None:
        while not stop.wait(0.7):
            if (pid := own_node.pid("serve")) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_serve)
    killer.start()
    try:
        script = "for n in $(seq 300); do cat /etc/passwd >/dev/null; sleep 0.01; done"
        run = own_node.run("--rollout", "shaken", command=script)
    finally:
        stop.set()
        killer.join()
    assert run.code == 0 and run.report["status"] == "final", run.said
    events = run.report["events"]
    produced = events["produced"]
    assert events["stored"] == produced > 1000 and events["lost"] == 0, events
    wait_until(lambda: not list(own_node.home.spool.glob("*.arrow")), 180)
    [row] = ask(own_node, "SELECT count() AS n, uniqExact(seq) AS u FROM events WHERE rollout_id = 'shaken'")
    assert (int(str(row["n"])), int(str(row["u"]))) == (produced, produced)


def test_a_store_that_is_held_by_another_delays_nothing_but_the_shipping(own_node):
    own_node.home.make()
    # Another process holds the store's lock, as a second serve or a stray client would.
    lock = os.open(own_node.home.store / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.fchmod(lock, 0o666)
    fcntl.flock(lock, fcntl.LOCK_EX)
    run = own_node.run(command="echo fine")
    assert run.code == 0 and run.stdout == b"fine\n"
    assert run.report["status"] == "final"
    events = run.report["events"]
    assert events["stored"] == events["produced"] > 0 and events["shipped"] == 0
    waiting = len(list(own_node.home.spool.glob("*.arrow")))
    assert waiting > 0
    assert "wait in the spool, safe but not in the store" in run.said and "in use by" in run.said
    os.close(lock)
    again = own_node.run(command=["true"])
    assert again.code == 0
    wait_until(lambda: not list(own_node.home.spool.glob("*.arrow")), 180)
    [row] = ask(own_node, f"SELECT count() AS n FROM events WHERE rollout_id = '{run.report['rollout_id']}'")
    assert int(str(row["n"])) == events["produced"]


@pytest.mark.slow
def test_a_store_that_is_down_delays_nothing_but_the_shipping(own_node):
    # A port that was just given back: nobody listens there.
    with socket.create_server(("127.0.0.1", 0)) as gone:
        away = {"INVIGILATOR_STORE": f"http://127.0.0.1:{gone.getsockname()[1]}"}
    run = own_node.run(command="echo fine", environment=away)
    assert (run.code, run.stdout, run.report["status"]) == (0, b"fine\n", "final"), run.said
    events = run.report["events"]
    assert events["stored"] == events["produced"] > 0 and events["shipped"] == 0
    assert f"{away['INVIGILATOR_STORE']} cannot be reached: Connection refused: start it" in run.said
    own_node.end()
    assert own_node.run(command=["true"]).code == 0
    wait_until(lambda: not list(own_node.home.spool.glob("*.arrow")), 180)
    [row] = ask(own_node, f"SELECT count() AS n FROM events WHERE rollout_id = '{run.report['rollout_id']}'")
    assert int(str(row["n"])) == events["produced"]


@contextlib.contextmanager
def disk_of_its_own(folder: Path, size: str, mode: int) -> Iterator[None]:
    """A small disk at `folder` while the body runs."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode={mode:o}", "small", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def small_disk():
    """A node whose spool is on a disk of its own, of two mebibytes."""
    with new_node() as made:
        made.home.make()
        with disk_of_its_own(made.home.spool, "2m", 0o700):
            try:
                yield made
            finally:
                made.end()


def fill(node: Node, folder: Path | None = None) -> Path:
    """Take all that is free on the spool's disk, or on that of `folder`."""
    filler = (folder or node.home.spool) / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (65536, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, b"\0" * size)
    finally:
        os.close(descriptor)
    return filler


def test_on_a_full_disk_no_rollout_begins(small_disk):
    assert small_disk.run(command=["true"]).code == 0
    filler = fill(small_disk)
    run = small_disk.run(command="echo ran")
    assert run.code == 125 and run.stdout == b""
    assert "no space left" in run.said and "free some" in run.said
    filler.unlink()
    assert small_disk.run(command=["true"]).code == 0


def test_a_disk_that_fills_during_a_rollout_is_a_failure_and_never_a_verdict(small_disk, tmp_path):
    report = tmp_path / "report.json"
    options = ("--rollout", "filled", "--report", str(report))
    process = begin(small_disk, "read line; echo got", *options, stdin=True)
    filler = fill(small_disk)
    out, said = process.communicate(b"go\n", timeout=180)
    assert out == b"got\n" and process.returncode == 125, said
    assert b"no space left" in said and b"free some" in said
    told = json.loads(report.read_text())
    assert told["status"] == "failed" and told["penalty"]["value"] is None
    filler.unlink()
    wait_until(lambda: small_disk.run(command=["true"]).code == 0, 180)
    small_disk.end()
    assert small_disk.run(command=["true"]).code == 0
    rows = ask(small_disk, "SELECT status FROM rollouts WHERE rollout_id = 'filled'")
    assert [row["status"] for row in rows] == ["failed"]


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b'{"node_id": "half', b"[]", b'{"node_id": 7}'])
def test_a_damaged_node_id_is_said_and_nothing_begins_until_it_is_mended(own_node, content):
    own_node.home.make()
    file = own_node.home.root / "node.json"
    file.write_bytes(content)
    run = own_node.run(command="echo ran")
    assert (run.code, run.stdout) == (125, b"")
    assert "node.json" in run.said and "remove it" in run.said and len(run.said.splitlines()) == 1, run.said
    assert "Traceback" not in run.said and file.read_bytes() == content
    file.unlink()
    assert own_node.run(command=["true"]).code == 0


def test_a_full_disk_of_the_store_delays_nothing_but_the_shipping():
    with new_node() as node:
        node.home.make()
        with disk_of_its_own(node.home.store, "64m", 0o711):
            try:
                assert node.run(command=["true"]).code == 0
                filler = fill(node, node.home.store)
                run = node.run("--rollout", "waits", command="echo fine")
                assert (run.code, run.stdout, run.report["status"]) == (0, b"fine\n", "final"), run.said
                assert "safe but not in the store" in run.said and "free some" in run.said
                # What is in the store can still be asked for.
                assert ask(node, "SELECT count() AS n FROM rollouts_current") in ([{"n": 1}], [{"n": "1"}])
                filler.unlink()
                wait_until(lambda: not list(node.home.spool.glob("*.arrow")), 180)
                rows = ask(node, "SELECT status FROM rollouts WHERE rollout_id = 'waits'")
                assert [row["status"] for row in rows] == ["final"]
            finally:
                node.end()


def test_a_full_state_folder_starts_nothing_is_said_and_leaves_nothing_in_the_way():
    with new_node() as node, disk_of_its_own(node.home.root, "300m", 0o711):
        try:
            # Enough for the folders, too little for the template of the default root.
            filler = fill(node, node.home.root)
            run = node.run(command="echo ran")
            assert (run.code, run.stdout) == (125, b"")
            assert "no space left" in run.said.lower() and "free some" in run.said, run.said
            with filler.open("r+b") as file:
                file.truncate(filler.stat().st_size - (30 << 20))
            run = node.run(command="echo ran")
            assert (run.code, run.stdout) == (125, b"")
            assert "no space left" in run.said.lower() and "free some" in run.said, run.said
            assert not list(node.home.roots.glob(".unfinished-*"))
            made = node.guard("token", "create", "--role", "trainer", "--name", "kept")
            assert made.returncode == 0, made.stderr
            more = fill(node, node.home.run)
            refused = node.guard("token", "create", "--role", "trainer", "--name", "lost")
            assert refused.returncode == 1 and b"no space left" in refused.stderr, refused.stderr
            kept = json.loads(node.guard("token", "list", "--json").stdout)
            assert [one["name"] for one in kept] == ["kept"]
            more.unlink()
            filler.unlink()
            assert node.run(command=["true"]).code == 0
        finally:
            node.end()


def test_the_agent_told_to_end_ends_its_rollouts_as_failed(own_node, tmp_path):
    report = tmp_path / "report.json"
    process = begin(own_node, "exec sleep 7773", "--rollout", "told", "--report", str(report))
    os.kill(own_node.pid("agent"), signal.SIGTERM)
    process.communicate(timeout=180)
    assert process.returncode == 125
    assert json.loads(report.read_text())["status"] == "failed"
    wait_until(lambda: not of_sandboxes("7773"), 180)


def test_no_sandbox_leaves_a_trace(node):
    before = {path.name for path in Path("/proc/self/ns").iterdir()}
    assert before
    mounts = Path("/proc/self/mountinfo").read_text()
    for _ in range(3):
        assert (
            node.run("--policy", "swe-task", command="sleep 1000 & disown; touch /root/x; echo done").code
            == 0
        )
    assert not cgroups(node.pid("agent"))
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not list(node.home.rollouts.iterdir())
