"""Series of numbers over the steps of a run, in bounded memory, and robust statistics of them."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence

__all__ = ["Series", "mad", "median", "theil_sen"]

RECENT = 256
KEPT = 1024
"""Older values are thinned out evenly, so that a run of any length fits."""


class Series:
    """Numbers by step. The first and the last values are all there, those between are thinned out."""

    def __init__(self) -> None:
        self.first: list[tuple[int, float]] = []
        self.recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._older: list[tuple[int, float]] = []
        self._every = 1
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def add(self, step: int, value: float) -> None:
        """The next value."""
        if len(self.first) < RECENT:
            self.first.append((step, value))
        elif self.count % self._every == 0:
            self._older.append((step, value))
            if len(self._older) > KEPT:
                self._older = self._older[::2]
                self._every *= 2
        self.recent.append((step, value))
        self.count += 1

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """(step, value) of all that is kept, the oldest first."""
        begin = self.recent[0][0] if self.recent else 0
        yield from ((step, value) for step, value in self.first if step < begin)
        yield from ((step, value) for step, value in self._older if step < begin)
        yield from self.recent

    @property
    def last(self) -> float:
        return self.recent[-1][1] if self.recent else math.nan

    def values(self) -> list[float]:
        return [value for _, value in self]

    def head(self, count: int) -> list[float]:
        """The first values, finite ones only."""
        return [value for _, value in self.first[:count] if math.isfinite(value)]

    def tail(self, count: int) -> list[float]:
        """The last values, finite ones only."""
        values = [value for _, value in self.recent][-count:]
        return [value for value in values if math.isfinite(value)]


def median(values: Sequence[float]) -> float:
    """NaN of nothing."""
    return statistics.median(values) if values else math.nan


def mad(values: Sequence[float]) -> float:
    """The median distance from the median, scaled to the standard deviation of a normal distribution."""
    middle = median(values)
    return 1.4826 * median([abs(value - middle) for value in values]) if values else math.nan


def theil_sen(points: Sequence[tuple[float, float]], most: int = 60) -> float:
    """The median of the slopes between points: a line fit that outliers do not move."""
    step = max(1, len(points) // most)
    some = list(points)[::step]
    slopes = [
        (b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(some) for b in some[i + 1 :] if b[0] != a[0]
    ]
    return median(slopes)
