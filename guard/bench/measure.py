"""How a figure is made: interleaved rounds, medians and spread, ratios taken pair by pair within one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure. `target` is what the project aims at, in words; `None` where it only informs."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    rounds: int
    target: str | None = None
    met: bool | None = None
    note: str = ""


@dataclass(slots=True)
class Section:
    """The figures of one section of `guard bench`, and what could not be measured here and why."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        unit: str,
        samples: Sequence[float],
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        note: str = "",
    ) -> Figure:
        """Summarise samples as median, lowest and highest; say whether the median meets the aim."""
        median = statistics.median(samples)
        target, met = _judge(median, unit, at_most, at_least)
        figure = Figure(name, unit, median, min(samples), max(samples), len(samples), target, met, note)
        self.figures.append(figure)
        return figure

    def json(self) -> dict[str, Any]:
        """The section as JSON-ready data."""
        return {"name": self.name, "figures": [asdict(f) for f in self.figures], "missing": self.missing}


def _judge(
    median: float, unit: str, at_most: float | None, at_least: float | None
) -> tuple[str | None, bool | None]:
    if at_most is not None:
        return f"≤ {at_most:,g} {unit}", median <= at_most
    if at_least is not None:
        return f"≥ {at_least:,g} {unit}", median >= at_least
    return None, None


def interleave(arms: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run every arm once a round, in turn, after one warm-up round: drift of the machine meets all alike."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, arm in arms.items():
            value = arm()
            if number:
                samples[name].append(value)
    return samples


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """above ÷ below, round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]
