"""The parameters of a model, one by one: their figures from bounded samples, ties, rows that are dead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn

from layerstep._torch import below_everything, is_lazy_clone, own_parameters
from layerstep.tensors.blocks import BLOCK, F32, F64, Array, Scratch, distinct, load, pieces, split
from layerstep.tensors.kinds import COPY_LIMIT, Part, bytes_of, open_values
from layerstep.tensors.shapes import attempt, dtype_name, shape_of

__all__ = ["Figures", "Weight", "collect", "histogram", "measure_all"]

BUDGET = 1 << 24  # elements read in all; NaN are searched for in all
DEAD = 1e-6  # of the largest weight: a row with nothing above it passes nothing on
PROBES = 16  # elements of each row that are read before the whole row is
BINS = 8


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the finite elements among those read; `count` is their number."""

    count: int
    bad: int
    """NaN and infinite ones."""
    zero: int
    mean: float
    std: float
    peak: float
    """The largest magnitude."""
    kurtosis: float
    """3 for a normal distribution, 1.8 for a uniform one; NaN if all are equal."""
    sampled: bool
    dead: int = 0
    """How many rows are zero or nearly zero, in two dimensions or more."""


@dataclass(slots=True)
class Weight:
    """A parameter with all its names; `figures` is None if its values cannot be read."""

    names: list[str]
    modules: list[nn.Module]
    attribute: str
    """Its name in the first module that has it."""
    tensor: torch.Tensor
    figures: Figures | None = None
    note: str = ""
    shape: tuple[int, ...] = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.shape = attempt(lambda: shape_of(self.tensor), ())
        self.size = attempt(lambda: int(self.tensor.numel()), 0)

    @property
    def module(self) -> nn.Module:
        return self.modules[0]

    @property
    def dtype(self) -> str:
        return str(attempt(lambda: dtype_name(self.tensor.dtype), "?"))

    @property
    def nbytes(self) -> int:
        return int(attempt(lambda: bytes_of(self.tensor, ""), 0))


def collect(modules: Iterable[tuple[str, nn.Module]]) -> list[Weight]:
    """The own parameters of these modules. Those that share their memory are one with several names."""
    found: dict[object, Weight] = {}
    for path, module in modules:
        for attribute, parameter in own_parameters(module):
            name = f"{path}.{attribute}" if path else attribute
            key = attempt(partial(_memory, parameter), id(parameter))
            if key not in found:
                found[key] = Weight([name], [module], attribute, parameter)
            elif name not in found[key].names:
                found[key].names.append(name)
                found[key].modules.append(module)
    return list(found.values())


def _memory(tensor: torch.Tensor) -> object:
    """A key that two tied parameters share."""
    if not tensor.numel() or is_lazy_clone(tensor) or not (address := tensor.data_ptr()):
        return id(tensor)
    return (address, tensor.numel(), tensor.dtype, tensor.device)


def measure_all(weights: Sequence[Weight], *, budget: int = BUDGET) -> None:
    """Fill in the figures of all weights, from about `budget` elements at most."""
    limit = _fair_limit([weight.size for weight in weights], budget)
    scratch = Scratch()
    with below_everything(), np.errstate(all="ignore"):
        for weight in weights:
            try:
                weight.figures, weight.note = _figures(weight.tensor, limit, scratch)
            except Exception as error:  # a kind of tensor unknown here must not end the user's run
                weight.note = f"values cannot be read: {type(error).__name__}"


def _fair_limit(sizes: list[int], budget: int) -> int:
    """The most elements to read of each tensor; small ones leave their part of the budget to large ones."""
    left = budget
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return max(share, 1)
        left -= size
    return budget


def _figures(tensor: torch.Tensor, limit: int, scratch: Scratch) -> tuple[Figures | None, str]:
    values = open_values(tensor)
    if values.parts is None or not tensor.numel():
        return None, values.note or "empty"
    sample, is_sample = _sample(values.parts, limit, scratch)
    good, low, high = sample, float(sample.min()), float(sample.max())  # numpy's carry NaN
    if not (low > -math.inf and high < math.inf):
        good = sample[np.isfinite(sample)]
        if not good.size:
            return Figures(0, sample.size, 0, math.nan, math.nan, math.nan, math.nan, is_sample), values.note
        low, high = float(good.min()), float(good.max())
    peak = max(abs(low), abs(high))
    if is_sample and not peak and bool(values.parts[0][0].any()):
        peak = math.ulp(0.0)  # the sample is all zero, but the tensor is not
    mean, std, kurtosis = _moments(good, peak)
    zero = good.size - int(np.count_nonzero(good))
    dead = _dead_rows(values.parts[0], sample, level=DEAD * peak) if not values.layout and peak else 0
    bad = _bad(values.parts[0][0]) if is_sample else sample.size - good.size
    found = Figures(good.size, bad, zero, mean, std, peak, kurtosis, is_sample, dead)
    return found, values.note


def _bad(tensor: torch.Tensor) -> int:
    """How many are NaN or infinite. One sum, as fast as the memory, tells if there are none."""
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize == 1 or bool(tensor.sum().isfinite()):
        return 0
    return sum(int((~piece.isfinite()).sum()) for (piece,) in split((tensor,)))


def _sample(parts: list[Part], limit: int, scratch: Scratch) -> tuple[Array, bool]:
    """All elements, or every n-th, as one float array."""
    lead = parts[0][0]
    if len(parts) == 1 and lead.numel() <= min(limit, BLOCK) and lead.is_contiguous():
        return load(parts[0], scratch), False  # most are so, and a model may have thousands
    if len(parts) == 1:
        parts = [distinct(parts[0])[0]]
    stored = sum(part[0].numel() for part in parts)
    step = 1 if stored <= limit else -(-stored // limit)
    while step > 1 and math.gcd(step, stored) > 1:  # a multiple of the width would read a single column
        step += 1
    blocks = [load(piece, scratch).copy() for part in parts for piece in pieces(part, 0, step=step)]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks), step > 1


def _moments(good: Array, peak: float) -> tuple[float, float, float]:
    if good.dtype == F32 and not 1e-9 < peak < 1e9:
        good = good.astype(F64)
    mean = float(good.sum(dtype=F64)) / good.size
    rest = good - good.dtype.type(mean)
    squares = np.multiply(rest, rest, out=rest)
    variance = float(squares.sum(dtype=F64)) / good.size
    if not variance > (1e-7 * peak) ** 2:
        return mean, 0.0, math.nan  # constant, apart from the rounding of its mean
    return mean, math.sqrt(variance), float(np.dot(squares, squares)) / good.size / variance**2


def _dead_rows(part: Part, sample: Array, *, level: float) -> int:
    """Count dead rows, in two dimensions or more.

    `sample` saves a second reading if it is the whole tensor.
    """
    tensor = part[0]
    if tensor.dim() < 2 or not tensor.dtype.is_floating_point or len(part) > 1:
        return 0
    if sample.size == tensor.numel() and tensor.is_contiguous():
        return int(np.count_nonzero(np.abs(sample.reshape(len(tensor), -1)).max(axis=1) <= level))
    if not tensor.is_contiguous() and tensor.numel() * tensor.element_size() > COPY_LIMIT:
        return 0
    rows = tensor.reshape(tensor.shape[0], -1)
    width = rows.shape[1]
    candidates = _quiet(rows[:, :: -(-width // PROBES)], level).nonzero().flatten()
    if not len(candidates):
        return 0
    chunk = max(1, (1 << 20) // width)
    return sum(int(_quiet(rows[some], level).sum()) for some in candidates.split(chunk))


def _quiet(rows: torch.Tensor, level: float) -> torch.Tensor:
    if rows.dtype.itemsize == 1:
        rows = rows.float()
    return rows.abs().amax(dim=1) <= level


def histogram(tensor: torch.Tensor, *, bins: int = BINS, limit: int = 1 << 14) -> list[float]:
    """Counts of a sample in equal bins from the least to the greatest value; none if all are equal."""
    with below_everything(), np.errstate(all="ignore"):
        try:
            values = open_values(tensor)
            if not values.parts or not tensor.numel():
                return []
            sample, _ = _sample(values.parts, limit, Scratch())
            good = sample[np.isfinite(sample)].astype(F64)
            if not good.size or good.max() == good.min():
                return []
            return [float(count) for count in np.histogram(good, bins=bins)[0]]
        except Exception:
            return []
