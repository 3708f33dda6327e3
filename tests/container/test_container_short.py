"""Containers that live as long as one short command: none is too short to be seen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from docker_daemon import IMAGE

from invigilator.guard.sdk import Sandbox

LIVES = 200
AT_ONCE = 4


@pytest.mark.slow
def test_the_first_exec_of_each_of_200_short_containers_is_seen(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", node.daemon.host)
    gate = asyncio.Semaphore(AT_ONCE)

    async def live(number: int) -> str:
        async with gate:
            box = Sandbox.create(
                backend="container", image=IMAGE, run_id="short", home=node.folder / "home"
            )  # fmt: skip
            async with box:
                assert (await box.exec(["true", f"life-{number}"])).exit_code == 0
                report = await box.verdict()
                assert report.events.lost == 0
                return box.sandbox_id

    async def all_lives() -> list[str]:
        return await asyncio.gather(*map(live, range(LIVES)))

    ids = asyncio.run(all_lives())
    query = (
        "SELECT toString(sandbox_id) AS box, arrayStringConcat(groupArray(kind), ' ') AS told, "
        "anyIf(path, kind = 'exec') AS program FROM (SELECT sandbox_id, seq, kind, path FROM events_readable "
        "WHERE run_id = 'short' ORDER BY sandbox_id, seq) GROUP BY sandbox_id"
    )
    answer = node.guard("sql", "--json", query)
    rows = json.loads(answer.stdout)
    assert {row["box"] for row in rows} == set(ids)
    assert {(row["told"], row["program"]) for row in rows} == {("phase exec exit phase", "/bin/busybox")}
    assert node.containers() == []
