"""Rows: what was counted in one block."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BlockFigures"]


class BlockFigures(NamedTuple):
    """The figures of one block. If nothing in it is finite, the last five have no meaning."""

    size: float
    nan: float
    up: float
    down: float
    zero: float
    negative: float
    subnormal: float
    lo: float
    hi: float
    mean: float
    std: float
    magnitude: float
