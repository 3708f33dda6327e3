"""The guest's clock, by which all waits are bounded."""

from __future__ import annotations

from pathlib import Path

SOURCES = Path("/sys/devices/system/clocksource/clocksource0")


def test_the_guests_clock_is_the_one_whose_rate_is_known() -> None:
    assert (SOURCES / "current_clocksource").read_text().strip() == "hpet"
