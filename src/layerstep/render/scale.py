"""From numbers to places on an axis, and back to a few round numbers that label it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from layerstep.tensors.bars import position
from layerstep.tensors.format import number

__all__ = ["Scale", "count_scale", "round_number", "scale_of"]

_MOST = sys.float_info.max
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`; by powers of ten if `log`, then both are positive."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """From 0 at the low end to 1 at the high one; NaN for what has no place."""
        if not math.isfinite(value) or (self.log and value <= 0):
            return math.nan
        if self.log:
            return position(math.log10(value), math.log10(self.low), math.log10(self.high))
        return position(value, self.low, self.high)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """About so many round values, two or more, each with its label."""
        tries = (self._powers(most) if self.log else self._steps(most + more) for more in range(4))
        values = next((values for values in tries if len(values) > 1), [self.low, self.high])
        largest = 0.0 if self.log else max(map(abs, values))  # 1e-38 is not 0 on an axis up to 1e38
        labels = [round_number(value, largest) for value in values]
        if len(set(labels)) < len(labels):  # 1000.01 and 1000.02 are not both 1000
            labels = [f"{value:.9g}" for value in values]
        return list(zip(values, labels, strict=True))

    def _powers(self, most: int) -> list[float]:
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        step = max(1, -(-(last - first + 1) // max(most, 1)))
        return [10.0**power for power in range(first, last + 1, step)]

    def _steps(self, most: int) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten."""
        least = self.high / max(most, 1) - self.low / max(most, 1)
        power = 10.0 ** math.floor(math.log10(least)) if least > 1e-300 else 0.0
        step = next((m * power for m in (1, 2, 5, 10) if m * power >= least), 0.0)
        if not 0 < step < math.inf or abs(self.low / step) > 1e15:
            return []
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [step * each for each in range(first, last + 1)]


def scale_of(values: Iterable[float], *, log: bool = False, zero: bool = False) -> Scale | None:
    """The axis that shows all of these, and zero too if asked; None if none of them is a number."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not known:
        return None
    low, high = min(known), max(known)
    if log:
        below = low / 2 or low  # half of 5e-324 is 0
        above = min(high * 2, _MOST)
        return Scale(below if zero or low == high else low, above if low == high else high, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        room = abs(low) / 10 or 1.0
        low, high = low if zero else max(low - room, -_MOST), min(high + room, _MOST)
    return Scale(low, high)


def count_scale(counts: Iterable[float], *, log: bool) -> Scale | None:
    """The axis of a histogram, from nothing up; by powers of ten from a half, so that one is seen."""
    known = [count for count in counts if 0 < count < math.inf]
    if not known:
        return None
    least = min(known)
    return Scale(min(0.5, least / 2 or least), max(known), log=True) if log else Scale(0.0, max(known))


def round_number(value: float, largest: float = 0.0) -> str:
    """A tick's label: 0.05, 250, 20k, 1.5M; of numbers up to `largest`."""
    largest = max(largest, abs(value))
    if abs(value) < largest * 1e-9:
        return "0"
    if 1e-4 <= largest < 1e4:
        return f"{value:.4g}" if abs(value) >= 1e-4 else number(value)
    for unit, letter in _UNITS:
        if unit <= abs(value) < 1e15:
            return f"{value / unit:.4g}{letter}"
    return number(value)
