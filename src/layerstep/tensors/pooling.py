"""Fewer numbers to draw: the means of neighbours in a row, and of blocks in a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["block_means", "pooled"]

Matrix = npt.NDArray[np.float64]


def pooled(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values (0: all): means of neighbours, without NaN."""
    if width <= 0 or len(values) <= width:
        return list(values)
    size = -(-len(values) // width)
    return [_mean(values[at : at + size]) for at in range(0, len(values), size)]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(value / len(known) for value in known) if known else math.nan


def block_means(matrix: Matrix, down: int, across: int) -> Matrix:
    """The mean of each block of so many rows and columns; those at the edges may be smaller."""
    if down == across == 1:
        return matrix
    rows, columns = (
        np.arange(0, size, step) for size, step in zip(matrix.shape, (down, across), strict=True)
    )
    for axis, starts in enumerate((rows, columns)):
        sizes = np.diff(starts, append=matrix.shape[axis])
        weights = np.repeat(1 / sizes, sizes)  # before the sum: 1e308 + 1e308 overflows
        matrix = np.add.reduceat(matrix * np.expand_dims(weights, 1 - axis), starts, axis=axis)
    return matrix
