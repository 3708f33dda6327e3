"""Sliding windows in event time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import Mask

SECOND_NS = 1_000_000_000
Times = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.float64]


def dense(times_ns: Times, window_s: float, least: float, weight: Numbers | None = None) -> Mask:
    """Which points lie in some window of length `window_s` whose weights (1 each by default) sum to `least`.

    `times_ns`: shape (n,), in any order; the answer is in the same order.
    """
    return dense_where(times_ns, window_s, lambda total, _: total >= least, weight)


def dense_where(
    times_ns: Times,
    window_s: float,
    qualifies: Callable[[Numbers, Numbers], Mask],
    weight: Numbers | None = None,
    second: Numbers | None = None,
) -> Mask:
    """As `dense`, where `qualifies` decides by the sums of two weights in the window from each point on."""
    n = len(times_ns)
    order = np.argsort(times_ns, kind="stable")
    ordered = times_ns[order]
    end = np.searchsorted(ordered, ordered + np.uint64(int(window_s * SECOND_NS)), side="right")
    sums = [_between(w, order, end) for w in (weight, second)]
    good = np.flatnonzero(qualifies(*sums))
    edges = np.zeros(n + 1, np.int64)
    np.add.at(edges, good, 1)
    np.add.at(edges, end[good], -1)
    covered = np.zeros(n, np.bool_)
    covered[order] = np.cumsum(edges[:-1]) > 0
    return covered


def _between(weight: Numbers | None, order: npt.NDArray[np.intp], end: npt.NDArray[np.intp]) -> Numbers:
    """Sum of the weights from each point to the end of the window that it begins."""
    n = len(order)
    weights = np.ones(n) if weight is None else weight[order].astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(weights)])
    sums: Numbers = total[end] - total[:n]
    return sums


class Rate:
    """A running sum over the last `window_s` seconds, over batches."""

    def __init__(self, window_s: float) -> None:
        self._window_ns = np.uint64(int(window_s * SECOND_NS))
        self._times: Times = np.empty(0, np.uint64)
        self._amounts: Numbers = np.empty(0)

    def add(self, times_ns: Times, amounts: Numbers) -> Numbers:
        """The sum of the window that ends at each of the next points, times ascending."""
        times = np.concatenate([self._times, times_ns])
        amounts = np.concatenate([self._amounts, amounts])
        np.maximum.accumulate(times, out=times)
        total = np.concatenate([[0.0], np.cumsum(amounts)])
        start = np.searchsorted(times, times - np.minimum(times, self._window_ns), side="left")
        sums: Numbers = (total[1:] - total[start])[len(self._times) :]
        if len(times):
            recent = times >= times[-1] - np.minimum(times[-1], self._window_ns)
            self._times, self._amounts = times[recent], amounts[recent]
        return sums
