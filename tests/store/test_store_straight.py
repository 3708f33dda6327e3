"""An agent that ships straight into ClickHouse: exactly once, nothing lost while the server is gone, full of
reasons, and without a word of the password."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_samples import rows
from store_server import Server

from invigilator.guard import delivery
from invigilator.guard.delivery import ShipError, ToStore
from invigilator.guard.home import Home
from invigilator.guard.ship import Shipper
from invigilator.incidents.segment import Segment
from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store

BOX = uuid.uuid4()
SECRET = "open-sesame"


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path / "spool")
    yield opened
    opened.close()


@pytest.fixture
def database(shared_server: Server) -> Iterator[tuple[str, Store]]:
    url = f"{shared_server.url}/t_{uuid.uuid4().hex}"
    store = Store.open(url)
    store.migrate()
    yield url, store
    store.close()


def count(store: Store) -> int:
    return int(store.query("SELECT count() AS n FROM events")["n"][0].as_py())


def fill(spool: Spool, n: int) -> list[Segment]:
    return [spool.append("events", rows(50, BOX, 1 + 50 * i), BOX) for i in range(n)]


def test_segments_go_straight_into_the_server_once_and_the_damaged_one_aside(
    database: tuple[str, Store], spool: Spool
) -> None:
    url, store = database
    made = fill(spool, 4)
    path = made[2].path
    assert path is not None
    path.write_bytes(path.read_bytes()[:-7])
    way = ToStore(url)
    for _ in range(2):
        settled = list(way.deliver(made))
        assert [one.id for one, _ in settled] == [one.id for one in made]
        assert [bool(refusal) for _, refusal in settled] == [False, False, True, False]
    way.close()
    assert count(store) == 150


@pytest.mark.slow
def test_a_server_that_is_killed_gets_everything_once_when_it_is_back(
    own_server: Server, spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(own_server.url)
    store.migrate()
    store.close()
    monkeypatch.setenv(delivery.SHIP_VARIABLE, own_server.url)
    shipped: list[Segment] = []
    shipper = Shipper(Home(tmp_path), spool, shipped.append)
    shipper.start()
    try:
        assert shipper.wait_for([one.id for one in fill(spool, 3)], 60)
        own_server.kill()
        later = [spool.append("events", rows(50, BOX, 1001 + 50 * i), BOX) for i in range(3)]
        assert not shipper.wait_for([one.id for one in later], 60)
        assert "cannot be reached" in str(shipper.trouble)
        assert len(spool.pending()) == 3
        own_server.start()
        deadline = time.monotonic() + 60
        while spool.pending() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not spool.pending(), shipper.trouble
    finally:
        shipper.stop()
    numbers = [one.number for one in shipped]
    assert numbers == sorted(set(numbers)) and len(numbers) == 6
    store = Store.open(own_server.url)
    assert store.query("SELECT count() AS n, uniqExact(seq) AS s FROM events").to_pylist() == [
        {"n": 300, "s": 300}
    ]
    store.close()


def test_an_agent_makes_no_schema_and_says_who_does(shared_server: Server, spool: Spool) -> None:
    way = ToStore(f"{shared_server.url}/t_{uuid.uuid4().hex}")
    with pytest.raises(ShipError, match=r"lacks the schema 0.*guard store migrate"):
        list(way.deliver(fill(spool, 1)))
    way.close()


@pytest.mark.parametrize("target", ["http://guard:{}@127.0.0.1:1/x", "postgres://guard:{}@db/x"])
def test_the_password_is_in_no_name_message_or_log(
    target: str, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    way = ToStore(target.format(SECRET))
    with pytest.raises(ShipError) as told:
        list(way.deliver(fill(spool, 1)))
    assert SECRET not in f"{way.place} {told.value} {caplog.text}"
