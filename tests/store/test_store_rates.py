"""The ready queries' rates on records made by hand, with answers known beforehand, on both engines."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_samples import START, incident, report
from store_server import Server

from invigilator.incidents import queries
from invigilator.incidents import rows as record_rows
from invigilator.incidents.records import Report, Review
from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store


class Desk:
    """A store that reports are filed in, all in one go."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.spool = store, Spool(folder)

    def file(self, *given: Report) -> None:
        made = [
            self.spool.append(table, data, None)
            for one in given
            for table, data in record_rows.report_rows(one, wall_offset_ns=5, steps=[]).items()
        ]
        self.store.ingest_together([(one.read_bytes(), one.header()) for one in made])

    def dismiss(self, filed: Report) -> None:
        words = {"incident_id": filed.incidents[0].id, "decision": "dismiss", "reviewer": "r", "at": START}
        made = self.spool.append("reviews", record_rows.review_rows([Review.model_validate(words)]), None)
        self.store.ingest(made.read_bytes(), made.header())

    def rates(self, name: str, **given: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = queries.run(self.store, name, **given).to_pylist()
        return rows


@pytest.fixture(scope="module", params=["chdb", "server"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Ten judged rollouts: one of two that tamper is blind; one is doubtful, one half blind."""
    folder = tmp_path_factory.mktemp("rates")
    target = str(folder / "store")
    if request.param == "server":
        server: Server = request.getfixturevalue("shared_server")
        target = f"{server.url}/t_{uuid.uuid4().hex}"
    store = Store.open(target)
    store.migrate()
    desk = Desk(store, folder / "spool")
    dismissed = report("dismissed", [incident("test_tamper")])
    desk.file(
        report("won", [incident("test_tamper"), incident("answer_read", channel="tamper")]),
        report("tried, blind", [incident("test_tamper", outcome="denied")], status="partial"),
        report("doubtful", [incident("test_tamper", confidence=0.4, counted=False)]),
        report("half blind", sandbox_id=str(uuid.UUID(int=1))),
        report("half blind", sandbox_id=str(uuid.UUID(int=2)), status="partial"),
        report("again", [incident("test_tamper")], status="partial"),
        report("again", attempt=2),
        *(report(f"honest {number}") for number in range(4)),
        dismissed,
        report("broken", [incident("test_tamper")], status="failed", failure="no disk"),
    )
    desk.dismiss(dismissed)
    yield desk
    store.close()


def test_a_kinds_rate_lies_between_what_is_proven_and_what_is_possible(desk: Desk) -> None:
    found = {row["kind"]: row for row in desk.rates("incidents_per_1000")}
    tampered = found["test_tamper"]
    assert (tampered["rollouts"], tampered["rollouts_with"], tampered["incidents"]) == (10, 2, 3)
    assert (tampered["low"], tampered["high"]) == (200.0, 400.0)  # doubtful and half blind may have it
    assert (found["answer_read"]["low"], found["answer_read"]["high"]) == (100.0, 300.0)
    [sure] = [
        row for row in desk.rates("incidents_per_1000", min_confidence="0.3") if row["rollouts_with"] > 2
    ]
    assert (sure["kind"], sure["low"], sure["high"]) == ("test_tamper", 300.0, 400.0)


def test_a_rollout_counts_once_in_its_channel(desk: Desk) -> None:
    [row] = desk.rates("incidents_by_channel")
    assert (row["channel"], row["rollouts_with"], row["low"], row["high"]) == ("tamper", 2, 200.0, 400.0)


def test_the_share_of_tries_that_succeed_is_bounded_by_what_may_have_gone_unseen(desk: Desk) -> None:
    found = {row["kind"]: row for row in desk.rates("attempts_and_successes")}
    row = found["test_tamper"]
    assert (row["rollouts_tried"], row["rollouts_succeeded"], row["incomplete"]) == (2, 1, 1)
    # least: doubtful and half blind tried in vain; most: these two and the blind one succeeded.
    assert (row["success_ratio"], row["low"], row["high"]) == (0.5, 0.25, 1.0)
    assert (found["answer_read"]["low"], found["answer_read"]["high"]) == (pytest.approx(1 / 3), 1.0)


def test_contaminated_rewards_are_bounded_by_the_blind_rollouts(desk: Desk) -> None:
    [row] = desk.rates("contaminated_rewards")
    assert (row["rollouts"], row["contaminated"], row["incomplete"]) == (10, 1, 2)
    assert (row["low"], row["high"]) == (0.1, pytest.approx(0.3))


def test_rates_by_label_have_bounds(desk: Desk) -> None:
    [row] = desk.rates("incidents_by_label", label="checkpoint")
    assert (row["value"], row["with_incident"], row["incomplete"]) == ("120", 2, 1)
    assert (row["low"], row["high"]) == (200.0, pytest.approx(300.0))


def test_rates_of_nothing_are_no_rows(store: Store, tmp_path: Path) -> None:
    desk = Desk(store, tmp_path / "spool")
    for name in (
        "incidents_per_1000",
        "incidents_by_channel",
        "attempts_and_successes",
        "contaminated_rewards",
    ):
        assert desk.rates(name) == []
