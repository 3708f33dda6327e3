"""A gap in a sandbox's numbers ages from when it was seen, not from when an earlier one was."""

from __future__ import annotations

import numpy as np

from invigilator.ebpf.order import GIVE_UP_S, SlotOrder


def _ready(order: SlotOrder, seqs: list[int], now: float) -> int:
    return order.ready(np.array(seqs, np.uint64), None, 0, now)


def test_gaps_that_are_filled_one_after_the_other_are_never_given_up() -> None:
    order, step = SlotOrder(), GIVE_UP_S * 0.4
    for turn in range(8):
        first = 2 * turn
        seqs = [first + 2] if turn == 0 else [first, first + 1]
        handed_out = _ready(order, [*([1] if turn == 0 else seqs), first + 3], turn * step)
        assert handed_out == (1 if turn == 0 else 2)
    assert order.vanished == 0


def test_a_gap_that_nothing_fills_is_given_up_in_the_end() -> None:
    order = SlotOrder()
    assert _ready(order, [1, 3], 0.0) == 1
    assert _ready(order, [3], 0.1) == 0
    assert _ready(order, [3], 0.1 + GIVE_UP_S) == 1
    assert order.vanished == 1
