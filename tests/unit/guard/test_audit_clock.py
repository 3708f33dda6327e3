"""When an audit record was written, whatever is done to the wall clock that stamps it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invigilator.sandbox.audit import STAMP_NS, Moment, since_boot

S, MS = 1_000_000_000, 1_000_000
WALL = 1_800_000_000 * S
BEFORE = Moment(100 * S, WALL + 100 * S)


def stamp(offset: int, boot: int) -> int:
    """As the kernel has it: to a millisecond."""
    return (boot + offset) // MS * MS


@given(
    written=st.integers(0, 250 * MS),
    until=st.integers(250 * MS, 500 * MS),
    set_after=st.integers(0, 500 * MS),
    step=st.integers(-3600 * S, 3600 * S),
)
def test_a_clock_that_is_set_once_moves_no_record_out_of_its_time(
    written: int, until: int, set_after: int, step: int
) -> None:
    """`set_after`: when, in the time between two readings, the clock is set."""
    boot = BEFORE.boot_ns + written
    offset = WALL + (step if written >= set_after else 0)
    after = Moment(
        BEFORE.boot_ns + until, WALL + BEFORE.boot_ns + until + (step if until >= set_after else 0)
    )
    found = since_boot(stamp(offset, boot), BEFORE, after)
    assert BEFORE.boot_ns - STAMP_NS <= found <= after.boot_ns
    # A small step leaves both clocks possible, and what they say apart by no more than it.
    assert abs(found - boot) <= max(MS, min(abs(step) + MS, until + STAMP_NS))


@pytest.mark.parametrize("step", [3600 * S, -3600 * S], ids=["forward", "back"])
@pytest.mark.parametrize("before_it", [True, False])
def test_a_step_of_an_hour_between_the_records_is_no_hour_between_their_times(
    step: int, before_it: bool
) -> None:
    boot = BEFORE.boot_ns + 50 * MS
    after = Moment(BEFORE.boot_ns + 100 * MS, BEFORE.wall_ns + 100 * MS + step)
    offset = WALL if before_it else WALL + step
    assert abs(since_boot(stamp(offset, boot), BEFORE, after) - boot) <= MS


def test_a_stamp_that_fits_neither_clock_is_of_the_earliest_time_that_is_possible() -> None:
    after = Moment(BEFORE.boot_ns + 100 * MS, BEFORE.wall_ns + 100 * MS)
    assert since_boot(WALL + 5000 * S, BEFORE, after) == BEFORE.boot_ns - STAMP_NS
