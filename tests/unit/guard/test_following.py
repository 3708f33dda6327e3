"""A rollout that is followed while it runs: all of it at its end, a part where there is enough, no holes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from invigilator.ebpf.events import EVENT, EventBatch, EventClass, Kind, Phase
from invigilator.guard.errors import GuardError, NotFoundError
from invigilator.guard.following import follow, until_interrupted
from invigilator.guard.research import Invigilator
from invigilator.profiles.learning import Use

SANDBOX = "00000000-0000-0000-0000-000000000001"


def events(*seqs: int) -> pa.Table:
    """Each opens /seq for reading in phase agent."""
    records = np.zeros(len(seqs), EVENT)
    records["seq"], records["path"] = seqs, range(1, len(seqs) + 1)
    records["kind"], records["class"], records["phase"] = Kind.OPEN, EventClass.FILE, Phase.AGENT
    batch = EventBatch(records, [b"", *(b"/%d" % seq for seq in seqs)])
    return pa.Table.from_batches([batch.to_arrow(bytes(16))])


class Store:
    """What of a rollout's events has come, look by look; `report` when all have."""

    def __init__(self, looks: Sequence[Sequence[int]], stored: int | None, enough: threading.Event) -> None:
        self.looks, self.stored, self.enough = looks, stored, enough
        self.look = 0

    def sql(self, query: str, **parameters: str) -> list[dict[str, Any]]:
        assert parameters == {"rollout_id": "r", "run_id": ""}
        return [{"sandbox_id": SANDBOX}]

    def rollout(self, rollout_id: str, run_id: str | None, sandbox_id: str) -> Any:
        self.look += 1
        if self.look < len(self.looks):
            raise NotFoundError("not yet")
        if self.stored is None:
            self.enough.set()
            raise NotFoundError("not yet")
        counts = SimpleNamespace(stored=self.stored, lost=0, lost_by={})
        ok = dict.fromkeys(("process", "file", "network", "privilege"), "ok")
        policy = SimpleNamespace(name="p")
        return SimpleNamespace(
            rollout_id="r",
            attempt=1,
            sandbox_id=SANDBOX,
            policy=policy,
            events=counts,
            coverage=ok,
            status="final",
        )

    def raw_events(self, sandbox_id: str, after: int = 0) -> Iterator[pa.Table]:
        there = [seq for seq in self.looks[min(self.look, len(self.looks)) - 1] if seq > after]
        if there:
            yield events(*there)


def followed(looks: Sequence[Sequence[int]], stored: int | None) -> tuple[Any, Any]:
    enough = threading.Event()
    return follow(cast(Invigilator, Store(looks, stored, enough)), "r", None, enough)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("invigilator.guard.following.POLL_S", 0)


def test_all_that_comes_by_the_end_is_learned_once() -> None:
    report, facts = followed([[1], [1], [1, 2, 3]], stored=3)
    assert report.rollout_id == "r"
    assert facts.uses == {Use(b"/%d" % seq, "read"): 1 for seq in (1, 2, 3)}
    assert "3 events, none lost" in facts.title


def test_a_piece_that_comes_after_a_later_one_is_learned_too() -> None:
    _, facts = followed([[1, 3], [1, 2, 3]], stored=3)
    assert set(facts.uses) == {Use(b"/%d" % seq, "read") for seq in (1, 2, 3)}


def test_what_the_store_has_not_is_missed_at_the_end() -> None:
    with pytest.raises(GuardError, match="the store has 2 of its 3 events"):
        followed([[1, 2]], stored=3)


def test_enough_is_what_there_is_by_then_and_the_title_says_that_it_is_a_part() -> None:
    report, facts = followed([[1], [1, 2]], stored=None)
    assert report is None
    assert len(facts.uses) == 2
    assert "while it ran: its first 2 events" in facts.title


def test_a_part_with_a_hole_teaches_nothing() -> None:
    with pytest.raises(GuardError, match="1 of its first 3 events are missing"):
        followed([[1, 3]], stored=None)


def test_the_first_interrupt_is_enough_and_the_second_ends_the_command() -> None:
    enough = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    with until_interrupted(enough):
        signal.raise_signal(signal.SIGINT)
        assert enough.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
