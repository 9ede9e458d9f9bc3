"""A tensor in a few numbers, as reports keep it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from layerstep.tensors.observing import observing
from layerstep.tensors.report import limit_for
from layerstep.tensors.summary import Summary, summarize

__all__ = ["TensorRecord", "look_at", "record_fields"]


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor that was looked at, in a few numbers."""

    name: str
    layer: str
    operation: str
    shape: tuple[int, ...]
    dtype: str
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    nan: int
    inf: int

    @property
    def is_finite(self) -> bool:
        return not self.nan and not self.inf


def record_fields(summary: Summary, name: str, *, layer: str = "", operation: str = "") -> dict[str, Any]:
    """The fields of a `TensorRecord`."""
    stats = summary.stats
    return {
        "name": name,
        "layer": layer,
        "operation": operation,
        "shape": tuple(summary.shape),
        "dtype": summary.dtype,
        **{key: getattr(stats, key, None) for key in ("mean", "std", "min", "max")},
        "nan": stats.nan if stats is not None else 0,
        "inf": stats.posinf + stats.neginf if stats is not None else 0,
    }


def look_at(tensor: Tensor) -> Summary:
    """The summary of a tensor. A very large one is read in parts."""
    with observing():
        return summarize(tensor, limit=limit_for([tensor]), brief=True)
