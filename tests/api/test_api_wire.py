"""Segments on the wire: compressed where the service says that it takes that, and no bomb unpacked."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from serving import Service, report

from invigilator.guard import delivery
from invigilator.guard.delivery import ToServe
from invigilator.guard.home import Home
from invigilator.incidents.rows import report_rows
from invigilator.incidents.segment import Segment
from invigilator.incidents.spool import Spool


@pytest.fixture
def made(tmp_path: Path) -> list[Segment]:
    """Three segments of rollouts."""
    spool = Spool(tmp_path / "spool")
    names = [f"wire-{uuid.uuid4()}" for _ in range(3)]
    tables = [report_rows(report(name), wall_offset_ns=0)["rollouts"] for name in names]
    found = [spool.append("rollouts", table, None) for table in tables]
    spool.close()
    return found


class Noting(ToServe):
    """Notes the encoding and the size of what it sends."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.home)
        self.service = service
        self.sent: list[tuple[str, int]] = []

    def _local(self) -> httpx.Client:
        client = self.service.client()
        client.event_hooks = {"request": [self._note]}
        return client

    def _note(self, request: httpx.Request) -> None:
        self.sent.append((request.headers.get("content-encoding", ""), len(request.content)))


def test_bodies_are_compressed_from_the_first_answer_on_and_stored_once(
    service: Service, made: list[Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(delivery.URL_VARIABLE, raising=False)
    way = Noting(service)
    for group in (made[:1], made, made[1:2]):
        assert [(one.id, refusal) for one, refusal in way.deliver(group)] == [(one.id, None) for one in group]
    way.close()
    assert [encoding for encoding, _ in way.sent] == ["", "zstd", "zstd"]
    whole = sum(len(one.header()) + 1 + one.size_bytes for one in made)
    assert way.sent[1][1] < whole / 2
    ids = ", ".join(f"'{one.id}'" for one in made)
    body = {"query": f"SELECT count() FROM rollouts WHERE segment_id IN ({ids})"}
    assert service.client().post("/v1/sql", json=body).json()["rows"] == [[3]]


def test_a_service_that_says_nothing_of_compression_gets_none(
    made: list[Segment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("content-encoding"))
        return httpx.Response(200, json={})

    monkeypatch.setenv(delivery.URL_VARIABLE, "http://user:secret@old.example.org")
    way = ToServe(Home(tmp_path))
    client = httpx.Client(base_url="http://old", transport=httpx.MockTransport(answer))
    monkeypatch.setattr(way, "_remote", lambda url: client)
    for one in made:
        assert [refusal for _, refusal in way.deliver([one])] == [None]
    assert asked == [None] * 3
    assert way.place == "guard serve at http://old.example.org"


def test_what_unpacks_to_more_than_a_body_may_have_is_refused(service: Service, made: list[Segment]) -> None:
    client = service.client()
    bomb = pa.compress(bytes(17 << 20), codec="zstd", asbytes=True)
    assert len(bomb) < 1 << 16
    headers = {"Content-Encoding": "zstd"}
    answer = client.post("/v1/segments/together", content=bomb, headers=headers)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (413, "body-too-large")


@pytest.mark.parametrize("damage", ["cut", "none", "another"])
def test_a_body_that_is_not_what_it_says_is_refused(
    damage: str, service: Service, made: list[Segment]
) -> None:
    packed = pa.compress(made[0].read_bytes(), codec="zstd", asbytes=True)
    body, encoding, status = {
        "cut": (packed[: len(packed) // 2], "zstd", 422),
        "none": (made[0].read_bytes(), "zstd", 422),
        "another": (packed, "br", 415),
    }[damage]
    headers = {"Content-Encoding": encoding, "X-Segment": made[0].header()}
    answer = service.client().post("/v1/segments", content=body, headers=headers)
    assert answer.status_code == status, answer.text
