"""Backtests: what a penalty policy would have done, beside figures worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from judging import found, judged, policy, ship_rules
from serving import Service, report, ship_report

from invigilator.guard.backtest import compare
from invigilator.guard.client import Invigilator
from invigilator.guard.errors import GuardError

RULES = policy()
DEAR = policy("{weights: {service_scan: 2.0, reward_forge: 0.0}}", "dear")
RUN = "backtest"
SINCE = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def recorded(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A group of four with a scan and a forgery, one rollout with a hole, one whose policy is lost."""
    folder = tmp_path_factory.mktemp("spool")
    ship_rules(service, RULES, folder)
    labels = {"checkpoint": "10", "group": "g"}
    rewards = {"scan": "1.0", "forge": "1.0", "plain": "0.8", "weak": "0.0"}
    incidents = {"scan": [found("service_scan")], "forge": [found("reward_forge")]}
    for name, reward in rewards.items():
        made = judged(name, RULES, incidents.get(name, []), run_id=RUN, labels={**labels, "reward": reward})
        ship_report(service, made, folder)
    hole = judged("hole", RULES, run_id=RUN, labels={"checkpoint": "20"}, coverage={"file": "degraded"})
    ship_report(service, hole, folder)
    ship_report(service, report("lost", run_id=RUN), folder)
    return service


@pytest.fixture
def record(recorded: Service) -> Iterator[Invigilator]:
    with Invigilator(home=recorded.home.root, frames=False) as opened:
        yield opened


def test_it_says_what_would_have_changed(record: Invigilator) -> None:
    result = record.backtest(DEAR, since=SINCE, run_id=RUN)
    assert (result.rollouts, result.with_reward) == (5, 4)
    forge, scan = result.kinds
    assert (forge.kind, forge.rollouts_before, forge.rollouts_after, forge.mean_change) == (
        "reward_forge",
        1,
        0,
        2.0,
    )
    assert (scan.kind, scan.rollouts_before, scan.rollouts_after, scan.mean_change) == (
        "service_scan",
        1,
        1,
        -1.5,
    )
    tenth, twentieth = result.checkpoints
    # scan: 1 − 0.5 → 1 − 2; forge: 1 − 2 → 1; plain and weak stay. Means: 0.075 → 0.2.
    assert (tenth.checkpoint, tenth.rollouts, tenth.changed) == ("10", 4, 2)
    assert tenth.mean_change == pytest.approx((-1.5 + 2.0) / 2)
    assert (tenth.newly_negative, tenth.groups, tenth.reranked) == (1, 1, 1)
    assert (tenth.mean_before, tenth.mean_after) == (pytest.approx(0.075), pytest.approx(0.2))
    assert tenth.flipped == 2, "scan's advantage falls below 0 and forge's rises above; weak stays below"
    assert (twentieth.checkpoint, twentieth.changed, twentieth.mean_before) == ("20", 0, None)
    assert any("no reward" in told for told in result.unknown)
    assert any("evidence was lost" in told for told in result.unknown)
    assert any(told.startswith("1 rollouts are left out") for told in result.unknown)


def test_its_own_policy_changes_nothing(record: Invigilator) -> None:
    result = record.backtest(RULES, since=SINCE, run_id=RUN)
    assert [(one.changed, one.reranked, one.flipped) for one in result.checkpoints] == [(0, 0, 0)] * 2
    assert all(one.changed == 0 for one in result.kinds)


def test_rewards_come_from_files_and_mappings(record: Invigilator, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rewards = {"scan": 1.0, "forge": 0.5}
    expected = record.backtest(DEAR, since=SINCE, run_id=RUN, rewards=rewards)
    assert expected.with_reward == 2
    lines = "".join(f"{name},{value}\n" for name, value in rewards.items())
    (tmp_path / "r.csv").write_text(f"rollout_id,reward\n{lines}")
    (tmp_path / "runs.csv").write_text(
        f"rollout_id,reward,run_id\nscan,1.0,{RUN}\nforge,0.5,{RUN}\nforge,9,x\n"
    )
    table = pa.table({"rollout_id": list(rewards), "reward": list(rewards.values())})
    parquet.write_table(table, tmp_path / "r.parquet")
    for name in ("r.csv", "runs.csv", "r.parquet"):
        assert record.backtest(DEAR, since=SINCE, run_id=RUN, rewards=tmp_path / name) == expected
    (tmp_path / "bad.csv").write_text("rollout_id,reward\nscan,much\n")
    with pytest.raises(GuardError, match="no table of rewards"):
        record.backtest(DEAR, since=SINCE, run_id=RUN, rewards=tmp_path / "bad.csv")


def test_the_command_prints_tables_json_and_a_picture(recorded: Service, tmp_path: Path) -> None:
    (tmp_path / "dear.yaml").write_text(
        "version: 1\nname: dear\nextends: swe-task\npenalty: {weights: {service_scan: 2.0}}\n"
    )
    command = [sys.executable, "-m", "invigilator.guard.cli.main", "penalties", "backtest", "--policy"]
    command += [
        str(tmp_path / "dear.yaml"),
        "--since",
        SINCE,
        "--run",
        RUN,
        "--plot",
        str(tmp_path / "b.svg"),
    ]
    environment = {"INVIGILATOR_HOME": str(recorded.home.root), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert "service_scan" in done.stdout
    picture = ElementTree.parse(tmp_path / "b.svg").getroot()
    told = [one.text or "" for one in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert any(text.startswith("10: ") and "1 of 4 rollouts changed" in text for text in told)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, env=environment)
    assert json.loads(done.stdout)["checkpoints"][0]["changed"] == 1


def test_bad_penalties_and_times_are_refused(recorded: Service, record: Invigilator) -> None:
    client = recorded.client()
    for body in (
        {"penalty": {"cap": "much"}, "since": SINCE},
        {"penalty": {}, "since": "2026-01-01T00:00:00"},
        {"penalty": {}, "since": "soon"},
        {"penalty": {}, "since": SINCE, "limit": 0},
    ):
        answer = client.post("/v1/penalties/backtest", json=body)
        assert answer.status_code == 422, body
    with pytest.raises(GuardError, match="no time"):
        record.backtest(RULES, since="soon")
    with Invigilator("http://127.0.0.1:1", "x", patience_s=0.1) as nowhere, pytest.raises(GuardError):
        nowhere.backtest(RULES)


def test_a_dropped_rollout_leaves_the_group_s_mean() -> None:
    def pair(name: str, before: float, after: float | None) -> dict[str, object]:
        one = {"value": before, "drop": False, "bound": False, "costs": {}}
        two = {"value": after, "drop": after is None, "bound": False, "costs": {}}
        return {"run_id": None, "rollout_id": name, "labels": {}, "group": "g", "before": one, "after": two}

    tried = {
        "rollouts": [pair("a", 0, 0), pair("b", -1, -1), pair("c", -5, None)],
        "skipped": 0,
        "more": False,
    }
    [result] = compare(tried, {}).checkpoints
    # The mean is −2 before: b stands above it; without c it is −0.5: b falls below.
    assert (result.now_dropped, result.flipped, result.reranked) == (1, 1, 0)
