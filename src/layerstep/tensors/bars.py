"""Bars of text: a row of numbers in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from layerstep.tensors.pooling import pooled

__all__ = ["position", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


def position(value: float, low: float, high: float) -> float:
    """Where a value is between two others, from 0 to 1. In halves, because 1e308 - -1e308 overflows."""
    span = high / 2 - low / 2  # half of 5e-324 is 0
    return (value / 2 - low / 2) / span if span > 0 else 0.0


def sparkline(values: Sequence[float], *, width: int = 0) -> str:
    """One character for each value, from the least to the greatest; a gap for NaN, `!` for an infinity.

    With `width`, at most so many characters: each is the mean of several values.
    """
    shown = pooled(values, width)
    finite = [value for value in shown if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)

    def bar(value: float) -> str:
        if not math.isfinite(value):
            return "!" if math.isinf(value) else " "
        return _BARS[round(position(value, low, high) * 7)]

    return "".join(map(bar, shown))
