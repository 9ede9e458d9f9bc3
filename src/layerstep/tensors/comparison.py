"""How two tensors differ, in figures and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Comparison"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two tensors differ; `words` says in one line what that looks like.

    Figures are over the elements that are finite in both. With other shapes or without values there are
    only words.
    """

    words: str
    count: int = 0
    differing: int = 0
    """How many elements differ; NaN equals NaN, and 0 equals -0."""
    first: tuple[int, ...] | None = None
    there: tuple[Any, Any] | None = None
    """The two values at the first place that differs."""
    max_abs: float | None = None
    mean_abs: float | None = None
    max_rel: float | None = None
    """Relative to the larger of the two magnitudes, so at most 2."""
    max_ulp: int | None = None
    """The largest difference in steps of the coarser dtype; None for integers and complex numbers."""
    cosine: float | None = None
    """None where one is all zero."""
    pearson: float | None = None
    """None where one is constant."""
    is_close: bool | None = None
    """What `torch.testing.assert_close` says with `equal_nan`, whatever the dtypes and devices."""
    tolerances: tuple[float, float] = (0.0, 0.0)
    """Relative and absolute."""
    finite_in_one: int = 0
