"""What a policy's filter and limits refuse is on the record: as events, joined to the calls' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

POLICY = """version: 1
name: tight
limits: {memory: 96MiB, pids: 24, cpus: 0.5}
"""
WORK = """
import ctypes, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(3):
    assert libc.syscall(250, 0, -3, 1) == -1 and ctypes.get_errno() == 1
children = []
try:
    while True:
        if (pid := os.fork()) == 0:
            time.sleep(600)
        children.append(pid)
except BlockingIOError:
    print("full")
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
grown = subprocess.run([sys.executable, "-c", "x = b'x' * (300 << 20)"])
assert grown.returncode == -9, grown
"""


def events(node, sandbox: str, what: str) -> list[dict[str, Any]]:
    asked = f"SELECT * FROM events_readable WHERE sandbox_id = '{sandbox}' AND {what}"
    done = node.guard("sql", "--json", asked)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_what_the_filter_and_the_limits_refuse_is_told(node, workspace: Path, tmp_path: Path) -> None:
    policy = tmp_path / "tight.yaml"
    policy.write_text(POLICY)
    (workspace / "work.py").write_text(WORK)
    options = ("--policy", policy, "--workspace", workspace, "--no-copy-back")
    run = node.run(*options, command=["python3", "/workspace/work.py"])
    assert run.code == 0 and run.report is not None, run.said
    counts = run.report["events"]
    assert counts["produced"] == counts["stored"], counts
    rows = events(node, run.report["sandbox_id"], "kind IN ('denial', 'limit', 'keyctl')")
    keys = [row for row in rows if row["kind"] == "keyctl"]
    told = [row for row in rows if row["kind"] == "denial" and row["text"].startswith("syscall keyctl")]
    assert len(keys) == 3
    assert sum(int(row["a0"]) for row in told) == 3
    assert int(told[0]["a1"]) == min(int(row["seq"]) for row in keys)
    assert {row["phase"] for row in told} == {"agent"}
    limits = {row["text"]: row for row in rows if row["kind"] == "limit"}
    assert int(limits["memory"]["a0"]) >= 1 and int(limits["memory"]["a1"]) == 96 << 20
    assert int(limits["pids"]["a0"]) >= 1 and int(limits["pids"]["a1"]) == 24
