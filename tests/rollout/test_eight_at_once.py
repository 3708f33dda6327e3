"""Runs beside each other on one machine: one agent, and nothing of one in another."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

from conftest import Node, Run, wait_until

RUNS = 8
WORK = """
set -e
test "$(cat own.txt)" = {me}
test "$(ls)" = own.txt
echo {me} > result.txt; echo {me} > /tmp/mark; echo {me} > /usr/mark
for round in $(seq 30); do
    test "$(cat /tmp/mark /usr/mark result.txt | sort -u)" = {me}
    test -z "$(ls /tmp | grep -v mark)"
done
test "$(cat /proc/[0-9]*/cmdline | grep -ao 'am-run-[0-9]' | sort -u)" = am-run-{me}
echo {me}; exit {me}
"""


def _begin(node: Node, folder: Path, number: int) -> Run:
    workspace = folder / f"work-{number}"
    workspace.mkdir()
    (workspace / "own.txt").write_text(f"{number}\n")
    return node.run(
        "--rollout", f"together-{number}", "--workspace", workspace, timeout_s=180,
        command=["bash", "-c", WORK.format(me=number), f"am-run-{number}"],
    )  # fmt: skip


def test_eight_runs_at_once_share_an_agent_and_nothing_else(own_node: Node, tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(RUNS) as pool:
        runs = list(pool.map(lambda number: _begin(own_node, tmp_path, number), range(RUNS)))
    for number, run in enumerate(runs):
        assert (run.code, run.stdout) == (number, b"%d\n" % number), run.said
        assert run.report is not None and run.report["status"] == "final", run.said
        assert run.report["rollout_id"] == f"together-{number}"
        assert run.report["events"]["produced"] > 0 and run.kinds() == set()
        assert (tmp_path / f"work-{number}" / "result.txt").read_text() == f"{number}\n"
        assert {path.name for path in (tmp_path / f"work-{number}").iterdir()} == {"own.txt", "result.txt"}
    assert len({run.report["sandbox_id"] for run in runs if run.report}) == RUNS
    agent = own_node.pid("agent")
    log = (own_node.home.run / "agent.log").read_text()
    assert agent is not None and "runs here already" not in log and "Traceback" not in log
    wait_until(lambda: not list(Path("/sys/fs/cgroup").glob(f"*/invigilator/{agent}-*/*/*-*-*")), 180)
