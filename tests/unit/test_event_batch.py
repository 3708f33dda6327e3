"""Batches of events: joined, taken apart by sandbox, and as Arrow columns."""

from __future__ import annotations

import itertools
import uuid

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from invigilator.ebpf.events import EVENT, STRING_FIELDS, EventBatch

WORDS = st.lists(st.binary(max_size=6), max_size=6)


def batch(words: list[bytes], count: int, slot: int = 1) -> EventBatch:
    """`count` events, their string fields taking turns among `words`."""
    strings = [b"", *words]
    records = np.zeros(count, EVENT)
    records["slot"] = slot
    records["seq"] = np.arange(1, count + 1)
    records["ino"] = np.arange(count) * 3
    records["address"] = np.arange(count)[:, None] % 251
    for shift, name in enumerate(STRING_FIELDS):
        records[name] = (np.arange(count) + shift) % len(strings)
    return EventBatch(records, strings)


def texts(events: EventBatch) -> list[list[bytes]]:
    return [[events.text(name, row) for name in STRING_FIELDS] for row in range(len(events))]


@given(st.lists(st.tuples(WORDS, st.integers(0, 5)), max_size=4))
def test_joined_batches_keep_every_text_and_leave_their_parts_alone(
    parts: list[tuple[list[bytes], int]],
) -> None:
    batches = [batch(words, count) for words, count in parts]
    before = list(itertools.chain.from_iterable(texts(one) for one in batches))
    whole = EventBatch.concat(batches)
    assert texts(whole) == before
    assert list(itertools.chain.from_iterable(texts(one) for one in batches)) == before
    assert whole.strings[0] == b"" and len(set(whole.strings)) == len(whole.strings)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), unique=True, max_size=20))
def test_each_sandbox_gets_its_events_in_order_however_they_lay(keys: list[tuple[int, int]]) -> None:
    mixed = batch([b"a"], len(keys))
    mixed.records["slot"] = [slot for slot, _ in keys]
    mixed.records["seq"] = [seq for _, seq in keys]
    parts = {slot: part.records["seq"].tolist() for slot, part in mixed.by_slot()}
    wanted = {slot: sorted(seq for s, seq in keys if s == slot) for slot, _ in keys}
    assert parts == wanted


def test_more_events_than_move_at_once_come_back_from_arrow_unchanged() -> None:
    events = batch([b"one", b"two", b"two"], 5_000)
    identity = uuid.uuid4().bytes
    table = events.to_arrow(identity)
    assert set(table.column("sandbox_id").to_pylist()) == {identity}
    assert set(table.column("path").dictionary.to_pylist()) == {b"", b"one", b"two"}
    back = EventBatch.from_arrow(table, slot=1)
    assert texts(back) == texts(events)
    for name in ("seq", "ino", "address"):
        assert (back.records[name] == events.records[name]).all()
