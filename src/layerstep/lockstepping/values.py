"""How far two values of two runs are apart, whatever their shapes, dtypes and devices."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from layerstep.lockstepping.trace import Kept, sample_of

__all__ = ["Sketch", "arranged", "distance", "main_pair", "others_differ", "sketch_of"]

MASKED = -1e8
"""Values below are masks, which each implementation writes in its own way: -inf, -1e9, the least float."""
MASK = -9e3
"""In a tensor that holds only zeros and masks; older models write -10,000."""
MOST_AXES = 5


@dataclass(frozen=True, slots=True)
class Sketch:
    """What of a tensor does not depend on the order of its elements. Those of parts can be added."""

    count: int
    total: float
    squares: float
    peak: float

    def __add__(self, other: Sketch) -> Sketch:
        return Sketch(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
            max(self.peak, other.peak),
        )

    def as_row(self) -> tuple[float, float, float, float]:
        return (self.count, self.total, self.squares, self.peak)


EMPTY = Sketch(0, 0.0, 0.0, 0.0)


def sketch_of(tensor: Tensor, count: int | None = None) -> Sketch:
    """The sketch of a tensor; NaN and what is masked count as zero."""
    values = _wide(tensor)
    values = torch.where((values > MASKED) & (values < -MASKED), values, 0.0)
    peak = float(values.abs().max()) if values.numel() else 0.0
    size = tensor.numel() if count is None else count
    return Sketch(size, float(values.sum()), float(values.square().sum()), peak)


def _wide(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    return plain.to("cpu", torch.float64)


def distance(a: Kept, b: Kept) -> float | None:
    """The norm of the difference, relative to that of the larger; None if the sizes differ.

    Infinite where one is finite and the other is not. Other shapes are brought to the order that fits best.
    """
    if a.numel != b.numel:
        return None
    pair = arranged(a, b)
    return _gap(*pair) if pair is not None else None


def _gap(x: Tensor, y: Tensor) -> float:
    if not x.numel():
        return 0.0
    if x.is_complex() != y.is_complex():
        return math.inf
    x, y = _wide(x), _wide(y)
    both = (x == y) | ((x < MASKED) & (y < MASKED)) | ((x != x) & (y != y))
    if bool(both.all()):
        return 0.0
    if bool((~both & ~(x.isfinite() & y.isfinite())).any()):
        return math.inf
    counts = x.isfinite() & y.isfinite() & ~((x < MASKED) & (y < MASKED))
    x, y = x[counts], y[counts]
    size = max(float(x.norm()), float(y.norm()))
    return float((x - y).norm()) / size if size else 0.0


def arranged(a: Kept, b: Kept) -> tuple[Tensor, Tensor] | None:
    """Both with their elements in the same order: as they are if the shapes agree, else as fits best."""
    if a.numel != b.numel:
        return None
    if a.is_sample or b.is_sample:
        if a.shape != b.shape:
            return None
        return tuple(each.values if each.is_sample else sample_of(each.values) for each in (a, b))  # type: ignore[return-value]
    x, y = a.values, b.values
    if x.shape == y.shape:
        return x, y
    found = [(x.reshape(-1), y.reshape(-1))]
    slim = x.squeeze()
    if slim.dim() <= MOST_AXES:
        wanted = y.squeeze().shape
        for axes in itertools.permutations(range(slim.dim())):
            turned = slim.permute(axes)
            if turned.shape == wanted or _merges(turned.shape, wanted):
                found.append((turned.reshape(-1), y.reshape(-1)))
    return min(found, key=lambda pair: _gap(*pair))


def _merges(shape: torch.Size, wanted: torch.Size) -> bool:
    """Is the second shape the first with neighbours joined, or the other way round?"""
    if len(shape) == len(wanted):
        return False
    longer, shorter = (shape, wanted) if len(shape) > len(wanted) else (wanted, shape)
    left = list(longer)
    for size in shorter:
        product = 1
        while left and product < size:
            product *= left.pop(0)
        if product != size:
            return False
    return not left


def main_pair(one: list[Kept], other: list[Kept]) -> tuple[Kept, Kept] | None:
    """Which tensors of two values correspond: the first floats of equal size, else the first others."""
    for is_wanted in (lambda x: x.is_float and x.numel > 1, lambda x: x.is_float, lambda x: not x.is_float):
        pairs = ((a, b) for a in one if is_wanted(a) for b in other if is_wanted(b) and a.numel == b.numel)
        if (found := next(pairs, None)) is not None:
            return found
    return None


def others_differ(one: list[Kept], other: list[Kept], tolerance: float) -> str:
    """The name of a further input that differs, such as a mask; "" if none of those that correspond does.

    What only one of the two gets says nothing, and neither do values of other sizes.
    """
    main = main_pair(one, other)
    if main is None:
        return ""
    rest, spare = (
        [each for each in one if each is not main[0]],
        [each for each in other if each is not main[1]],
    )
    for a in rest:
        b = next((each for each in spare if each.numel == a.numel and a.numel > 1), None)
        if b is None:
            continue
        spare.remove(b)
        if _is_mask(a) and _is_mask(b):
            differs = not _same_mask(a, b)
        elif a.is_float and b.is_float:
            differs = (distance(a, b) or 0.0) > tolerance
        else:
            differs = False
        if differs:
            return a.name
    return ""


def _is_mask(kept: Kept) -> bool:
    values = kept.values
    if values.dtype == torch.bool:
        return True
    if values.is_floating_point():
        return bool(((values == 0) | (values < MASK)).all()) and bool((values < MASK).any())
    return not values.is_complex() and bool(((values == 0) | (values == 1)).all())


def _same_mask(a: Kept, b: Kept) -> bool:
    """Do both let the same places through? A mask of words or numbers can mean either by True."""
    pair = arranged(a, b)
    if pair is None:
        return True
    x, y = ((each == 0) if each.is_floating_point() else each.bool() for each in pair)
    is_fixed = pair[0].is_floating_point() and pair[1].is_floating_point()
    return bool((x == y).all()) or (not is_fixed and bool((x != y).all()))
