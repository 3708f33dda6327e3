"""The Python client: waiting, refusing to invent zeros, data frames; over a real service."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from serving import Service, incident, report, ship_report

from invigilator.guard.client import (
    Invigilator,
    PenaltyClient,
    PenaltyUnavailableError,
    TooManyUnknownError,
)
from invigilator.guard.errors import NotFoundError, RefusedError, UnreachableError
from invigilator.incidents.records import Penalty


def url(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}"


def test_a_batch_has_one_penalty_a_rollout_in_order(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("c-bad", [incident("reward_forge")]), spool_folder)
    ship_report(service, report("c-good"), spool_folder)
    with PenaltyClient(home=service.home.root) as client:
        found = client.batch(["c-good", "c-bad", "c-good"])
    assert [one.value for one in found] == [0.0, -2.0, 0.0]
    assert found[1].reasons[0].kind == "reward_forge"
    assert found[1].versions is not None
    assert [one.drop for one in found] == [False] * 3


def test_over_tcp_with_a_trainers_token(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("c-tcp"), spool_folder)
    with PenaltyClient(url(service), service.token("trainer")) as client:
        assert client.batch(["c-tcp"])[0].value == 0.0
    with PenaltyClient(url(service), "inv_a_b") as client, pytest.raises(RefusedError, match="token"):
        client.batch(["c-tcp"])
    with PenaltyClient(url(service), service.token("node")) as client, pytest.raises(RefusedError):
        client.batch(["c-tcp"])


def test_it_waits_for_a_verdict_that_comes(service: Service, spool_folder: Path) -> None:
    late = threading.Timer(1.0, ship_report, (service, report("c-late"), spool_folder))
    late.start()
    with PenaltyClient(home=service.home.root) as client:
        assert client.batch(["c-late"], timeout_s=30)[0].status == "final"
    late.join()


def test_what_never_comes_raises_with_the_ids_or_is_none(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("c-here"), spool_folder)
    with PenaltyClient(home=service.home.root) as client:
        with pytest.raises(PenaltyUnavailableError) as caught:
            client.batch(["c-here", "c-never"], timeout_s=0.5)
        assert caught.value.rollout_ids == ("c-never",)
        here, never = client.batch(["c-here", "c-never"], timeout_s=0.5, on_unavailable="none", max_unknown=1)
        assert (here.value, here.drop) == (0.0, False)
        assert (never.value, never.drop, never.status) == (None, True, "unavailable")
        [now] = client.batch(["c-never"], wait_for="nothing", on_unavailable="none", max_unknown=None)
        assert now.status == "unavailable"


def test_too_many_unknown_values_raise_and_come_along(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("c-known"), spool_folder)
    unknown = report("c-unknown", status="partial", penalty=Penalty(value=None))
    ship_report(service, unknown, spool_folder)
    with PenaltyClient(home=service.home.root) as client:
        assert len(client.batch(["c-known", "c-unknown"], max_unknown=0.5)) == 2
        with pytest.raises(TooManyUnknownError) as caught:
            client.batch(["c-known", "c-unknown"], max_unknown=0.4)
        with pytest.raises(TooManyUnknownError, match="over 5%"):
            client.batch(["c-known", "c-unknown"])
    assert [one.value for one in caught.value.penalties] == [0.0, None]


def test_the_async_twin_answers_the_same(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("c-async", [incident("reward_forge")]), spool_folder)

    async def ask() -> list[float | None]:
        async with PenaltyClient(home=service.home.root) as client:
            found = await asyncio.gather(*(client.batch_async(["c-async"]) for _ in range(5)))
            with pytest.raises(PenaltyUnavailableError):
                await client.batch_async(["c-nobody"], timeout_s=0.3)
        return [one.value for batch in found for one in batch]

    assert asyncio.run(ask()) == [-2.0] * 5


def test_a_service_that_is_not_there_is_said_never_a_zero() -> None:
    with PenaltyClient("http://127.0.0.1:9", "x") as client:
        with pytest.raises(PenaltyUnavailableError, match="does not answer"):
            client.batch(["r"], timeout_s=0.2)
        [found] = client.batch(["r"], timeout_s=0.2, on_unavailable="none", max_unknown=1)
        assert (found.value, found.drop) == (None, True)
    with Invigilator("http://127.0.0.1:9", "x", patience_s=0.1) as record, pytest.raises(UnreachableError):
        record.sql("SELECT 1")


def test_one_id_instead_of_a_list_is_a_mistake() -> None:
    with PenaltyClient("http://127.0.0.1:9") as client, pytest.raises(TypeError):
        client.batch("r1")


def test_an_empty_batch_asks_nobody() -> None:
    with PenaltyClient("http://127.0.0.1:9") as client:
        assert client.batch([]) == []


def test_the_record_comes_as_data_frames(service: Service, spool_folder: Path) -> None:
    ship_report(service, report("c-frame", [incident("reward_forge"), incident("canary_read")]), spool_folder)
    with Invigilator(home=service.home.root) as record:
        query = "SELECT kind, weight FROM incidents_current WHERE rollout_id = {r:String} ORDER BY kind"
        frame = record.sql(query, r="c-frame")
        assert isinstance(frame, pd.DataFrame)
        assert frame["kind"].tolist() == ["canary_read", "reward_forge"]
        incidents = record.incidents(rollout_id="c-frame")
        assert isinstance(incidents, pd.DataFrame)
        assert set(incidents["kind"]) == {"canary_read", "reward_forge"}
        assert record.rollout("c-frame", "run-1").rollout_id == "c-frame"
        events = record.events("c-frame")
        assert isinstance(events, pd.DataFrame)
        assert len(events) == 0
        assert record.query("rollout_report", rollout_id="c-frame")["status"].tolist() == ["final"]
        with pytest.raises(NotFoundError):
            record.rollout("c-nobody")
        with pytest.raises(RefusedError):
            record.sql("DROP TABLE rollouts")


def test_without_frames_the_record_comes_as_dicts(service: Service) -> None:
    with Invigilator(home=service.home.root, frames=False) as record:
        assert record.sql("SELECT 1 AS a, 'x' AS b") == [{"a": 1, "b": "x"}]


def test_lists_longer_than_a_page_come_whole(service: Service) -> None:
    with Invigilator(home=service.home.root, frames=False) as record:
        few = record.listed("incidents", 3)
        assert len(few) == 3
        assert len(record.listed("incidents", 100_000)) >= 3


def test_the_client_needs_nothing_of_a_node() -> None:
    script = (
        "import sys\n"
        "heavy = ('numpy', 'pyarrow', 'pandas', 'fastapi', 'uvicorn', 'chdb', 'clickhouse_connect')\n"
        "sys.modules.update(dict.fromkeys(heavy))\n"
        "from invigilator.guard.client import Invigilator, PenaltyClient\n"
        "client = PenaltyClient('http://127.0.0.1:9')\n"
        "assert client.batch(['r'], timeout_s=0.1, on_unavailable='none', max_unknown=1)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
