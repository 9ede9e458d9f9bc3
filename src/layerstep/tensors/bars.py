"""Bars of text: a row of numbers in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["pooled", "position", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


def position(value: float, low: float, high: float) -> float:
    """Where a value lies between two others, from 0 to 1; in halves, since 1e308 - -1e308 is no number."""
    span = high / 2 - low / 2  # half of 5e-324 is 0
    return (value / 2 - low / 2) / span if span > 0 else 0.0


def sparkline(values: Sequence[float], *, width: int = 0) -> str:
    """One character a value, from the least to the greatest; a gap for NaN, `!` for an infinity.

    With `width` no more characters than that: each is then the mean of several values.
    """
    shown = pooled(values, width)
    finite = [value for value in shown if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)

    def bar(value: float) -> str:
        if not math.isfinite(value):
            return "!" if math.isinf(value) else " "
        return _BARS[round(position(value, low, high) * 7)]

    return "".join(map(bar, shown))


def pooled(values: Sequence[float], width: int) -> list[float]:
    """No more than `width` values (0: as many as there are): the means of neighbours that are numbers."""
    if width <= 0 or len(values) <= width:
        return list(values)
    size = -(-len(values) // width)
    return [_mean(values[at : at + size]) for at in range(0, len(values), size)]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(value / len(known) for value in known) if known else math.nan
