"""Which events may be handed out: by number, gaps only once they are known to be loss."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from invigilator.ebpf.order import GIVE_UP_S, SETTLE_S, SlotOrder

NEVER, LATER = -1.0, 1e9


def seqs(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(numbers, np.uint64)


def test_whole_runs_go_at_once() -> None:
    order = SlotOrder()
    assert order.ready(seqs(1, 2, 3), None, 0, 0.0, NEVER) == 3
    assert order.watermark(3, 0, False) == 3


def test_a_gap_that_may_still_come_holds_what_follows() -> None:
    order = SlotOrder()
    assert order.ready(seqs(1, 2, 4), None, 5, 0.0, NEVER) == 2
    assert order.watermark(4, 0, True) == 2
    assert order.ready(seqs(3, 4), None, 5, 0.001, NEVER) == 2
    assert (order.settled, order.vanished) == (0, 0)


def test_a_gap_is_passed_over_once_the_rings_are_read_past_it() -> None:
    order = SlotOrder()
    assert order.ready(seqs(3, 4), None, 2, 1.0, NEVER) == 0
    assert order.ready(seqs(3, 4), None, 2, 1.1, 1.0) == 0
    assert order.ready(seqs(3, 4), None, 2, 1.1, 1.0 + SETTLE_S) == 2
    assert (order.settled, order.vanished) == (2, 0)


def test_what_came_after_the_gap_was_noticed_proves_nothing() -> None:
    order = SlotOrder()
    assert order.ready(seqs(2), None, 9, 1.0, NEVER) == 0
    assert order.ready(seqs(2, 3, 9), None, 9, 1.1, 1.0 + SETTLE_S) == 1
    assert (order.delivered, order.settled) == (2, 1)
    assert order.ready(seqs(3, 9), None, 9, 1.1, 1.0 + SETTLE_S) == 1
    assert order.ready(seqs(4, 5, 6, 7, 8, 9), None, 9, 1.2, NEVER) == 6


def test_gaps_that_are_filled_one_after_the_other_each_have_their_own_age() -> None:
    order, step = SlotOrder(), SETTLE_S * 0.4
    for turn in range(8):
        first = 2 * turn
        known = [1] if turn == 0 else [first, first + 1]
        now = turn * step
        assert order.ready(seqs(*known, first + 3), None, 0, now, now) == len(known)
    assert (order.vanished, order.delivered) == (0, 15)


def test_a_gap_that_nothing_explains_is_called_vanished() -> None:
    order = SlotOrder()
    assert order.ready(seqs(2), None, 0, 0.0, NEVER) == 0
    assert order.ready(seqs(2), None, 0, 1.0, 0.5) == 1
    assert (order.settled, order.vanished) == (0, 1)


def test_a_program_that_was_held_up_is_waited_for() -> None:
    order = SlotOrder()
    assert order.ready(seqs(2), None, 0, 0.0, NEVER) == 0
    assert order.ready(seqs(2, 3), None, 0, GIVE_UP_S / 2, GIVE_UP_S / 2) == 0
    assert order.ready(seqs(1, 2, 3), None, 0, GIVE_UP_S * 0.6, GIVE_UP_S * 0.6) == 3
    assert (order.settled, order.vanished) == (0, 0)


def test_a_string_on_its_way_holds_its_event_and_later_ones() -> None:
    order = SlotOrder()
    assert order.ready(seqs(1, 2, 3), np.array([False, True, False]), 0, 0.0, NEVER) == 1
    assert order.ready(seqs(2, 3), np.array([True, False]), 0, 0.1, 0.1) == 0
    assert order.ready(seqs(2, 3), np.array([True, False]), 0, GIVE_UP_S + 1, LATER) == 2
    assert order.vanished == 0


def test_losses_at_the_end_move_the_watermark() -> None:
    order = SlotOrder()
    order.ready(seqs(1, 2), None, 0, 0.0, NEVER)
    assert order.watermark(5, 2, False) == 2
    assert order.watermark(5, 3, False) == 5


@given(st.lists(st.booleans(), min_size=1, max_size=200), st.randoms(use_true_random=False))
def test_no_number_is_handed_out_twice_or_late(kept: list[bool], random: object) -> None:
    """Numbers arrive in any order and parts, some are lost: those handed out ascend, all others are lost."""
    arrivals = [n + 1 for n, keep in enumerate(kept) if keep]
    random.shuffle(arrivals)  # type: ignore[attr-defined]
    lost = kept.count(False)
    order, pending, out, now = SlotOrder(), [], [], 0.0
    for start in range(0, len(arrivals), 7):
        pending = sorted(pending + arrivals[start : start + 7])
        count = order.ready(seqs(*pending), None, lost, now, NEVER)
        out, pending = out + pending[:count], pending[count:]
        now += 0.0001
    for _ in range(4):
        if pending:
            count = order.ready(seqs(*pending), None, lost, now, now)
            out, pending = out + pending[:count], pending[count:]
        now += SETTLE_S * 2
    assert out == sorted(arrivals)
    assert order.watermark(len(kept), lost, False) == len(kept)
    assert order.vanished == 0
