"""What was done to one tensor to make the other, in words: rounded, moved, scaled, changed in one place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from layerstep._torch.tensors import as_numpy
from layerstep.tensors.blocks import Array, split
from layerstep.tensors.comparison import Comparison
from layerstep.tensors.format import number, place
from layerstep.tensors.pairs import arrays, bits_of, coarser, same_values
from layerstep.tensors.permute import moved, reordered_axes
from layerstep.tensors.shapes import dtype_name, shape_line

__all__ = ["explain", "shapes_differ"]

SMALL = 1 << 22  # elements: in larger tensors we do not look for moved elements
ROUNDING = 16  # ulp: what another order of summation can cause
MOST_SLICES = 6
FEW = 4

_ROUNDED = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def shapes_differ(a: torch.Tensor, b: torch.Tensor) -> str:
    text = f"shapes differ: {shape_line(a)} and {shape_line(b)}"
    if a.numel() != b.numel() or not 0 < a.numel() <= SMALL:
        return text
    x, y = _integers(a, b)
    axes = reordered_axes(x, y)
    if axes:
        return f"{text}; the second is the first, {axes}"
    if np.array_equal(x.reshape(-1), y.reshape(-1)):
        return f"{text}; the same values in the same order, reshaped"
    return text


def _integers(a: torch.Tensor, b: torch.Tensor) -> tuple[Array, Array]:
    """Both as integers, equal where the values are equal after rounding to the coarser dtype."""
    dtype = torch.complex64 if a.is_complex() or b.is_complex() else coarser(a.dtype, b.dtype)
    one, other = (tensor.cpu() if dtype is None else tensor.cpu().to(dtype) for tensor in (a, b))
    return _code(one), _code(other)


def _code(tensor: torch.Tensor) -> Array:
    """The bits as integers; -0 as 0, a complex number as the eight bytes of its parts."""
    if tensor.is_complex():
        return as_numpy(torch.view_as_real(tensor + 0).contiguous().view(torch.int64).squeeze(-1))
    if not tensor.dtype.is_floating_point:
        return as_numpy(tensor.to(torch.int64))
    return as_numpy(torch.where(tensor.to(torch.float64) == 0, 0, bits_of(tensor)))


def explain(a: torch.Tensor, b: torch.Tensor, found: Comparison, *, line: tuple[float, float]) -> str:
    """Say what turned the first tensor into the second, where that can be found. The two do differ."""
    words = _rounded(a, b, found) or (_finite_in_one(a, b, found) if found.finite_in_one else "")
    if words:
        return words
    if found.differing == 1 < found.count and found.first is not None and found.there is not None:
        one, other = found.there
        return f"only element {place(found.first)} differs: {_value(one)} and {_value(other)}"
    if a.numel() <= SMALL and not _is_double_complex(a, b):
        words = moved(*_integers(a, b))
    return words or _signs(a, b, found) or _on_a_line(a, b, *line) or _apart(a, b, found)


def _is_double_complex(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.complex128 in (a.dtype, b.dtype)


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | complex) else str(value)


def _rounded(a: torch.Tensor, b: torch.Tensor, found: Comparison) -> str:
    """Find a round trip through a coarser dtype, in either direction. A few elements may match by chance."""
    if a.dtype == b.dtype and found.differing < FEW:
        return ""
    for one, other, names in ((a, b, ("second", "first")), (b, a, ("first", "second"))):
        if not (one.dtype.is_floating_point and other.dtype.is_floating_point):
            continue
        for dtype in _ROUNDED:
            if torch.finfo(dtype).eps <= torch.finfo(one.dtype).eps:
                continue
            if all(same_values(x.to(dtype).to(other.dtype), y) for x, y in split((one, other))):
                how = "rounded to" if dtype == other.dtype else "after a round trip through"
                lost = f"; {found.finite_in_one:,} overflowed" if found.finite_in_one else ""
                return f"the {names[0]} is the {names[1]} {how} {dtype_name(dtype)}{lost}"
    return ""


def _finite_in_one(a: torch.Tensor, b: torch.Tensor, found: Comparison) -> str:
    counts, only_nan = [0, 0], True
    for x, y in arrays(a, b):
        odd = ~np.isfinite(x), ~np.isfinite(y)
        for side, (values, mine, theirs) in enumerate(((x, *odd), (y, *odd[::-1]))):
            alone = mine & ~theirs
            counts[side] += int(np.count_nonzero(alone))
            only_nan = only_nan and bool(np.isnan(values[alone]).all())
    what = "NaN" if only_nan else "NaN or infinite"
    sides = zip(counts, ("first", "second"), strict=True)
    words = " and ".join(f"{what} in the {name} only at {count:,}" for count, name in sides if count)
    rest = found.differing - found.finite_in_one
    more = f"the rest differs by up to {number(found.max_abs)}" if rest else "the rest is equal"
    first = f", first at {place(found.first)}" if found.first and not rest else ""
    return f"{words} of {found.count:,} elements{first}; {more}"


def _signs(a: torch.Tensor, b: torch.Tensor, found: Comparison) -> str:
    if a.dtype == b.dtype == torch.bool:
        return "the second is the first, inverted" if found.differing == found.count else ""
    is_all = True
    for x, y in arrays(a, b):
        if not np.array_equal(np.abs(x), np.abs(y)):
            return ""
        is_all = is_all and np.array_equal(x, -y)
    if is_all:
        return "the second is the first with its sign flipped"
    return f"the same magnitudes, the sign flipped {_where(a, b, found)}"


def _on_a_line(a: torch.Tensor, b: torch.Tensor, slope: float, shift: float) -> str:
    """Is the second a multiple of the first, or the first plus a number, to two roundings each?"""
    if a.numel() < 2 or a.dtype == torch.bool or b.dtype == torch.bool:
        return ""
    dtype = coarser(a.dtype, b.dtype)
    eps = torch.finfo(dtype or torch.float64).eps
    least = torch.finfo(dtype or torch.float64).tiny * eps * 2
    if abs(slope - 1) > 32 * eps and _all_near(a, b, slope, 0.0, eps=eps, least=least):
        return f"the second is {slope:.6g} times the first"
    if _all_near(a, b, 1.0, shift, eps=eps, least=least):
        return f"the second is the first {'plus' if shift > 0 else 'minus'} {abs(shift):.6g}"
    return ""


def _all_near(
    a: torch.Tensor, b: torch.Tensor, slope: float, shift: float, *, eps: float, least: float
) -> bool:
    if not (math.isfinite(slope) and math.isfinite(shift)):
        return False
    for x, y in arrays(a, b):
        size = np.abs(y) if not shift else np.maximum(np.abs(x), np.abs(y))
        slack = 2 * eps * size + least
        off = np.abs(y - (x * slope + shift))
        same = (off <= slack) | (x == y) & ~np.isfinite(x) | (x != x) & (y != y)
        if not same.all() or (shift and (16 * slack[np.isfinite(slack)] > abs(shift)).any()):
            return False
    return True


def _apart(a: torch.Tensor, b: torch.Tensor, found: Comparison) -> str:
    where, dtype = _where(a, b, found), coarser(a.dtype, b.dtype)
    if dtype is not None and found.max_ulp is not None and 0 < found.max_ulp <= ROUNDING:
        if found.max_ulp == 1:
            return f"one ulp of {dtype_name(dtype)} apart, {where}"
        rounding = ": rounding" if found.is_close else ""
        return f"up to {found.max_ulp} ulp of {dtype_name(dtype)} apart, {where}{rounding}"
    if found.is_close:
        return f"close by the usual tolerances, not equal, {where}"
    return f"different, {where}"


def _where(a: torch.Tensor, b: torch.Tensor, found: Comparison) -> str:
    if found.differing == found.count:
        return "everywhere"
    shape = tuple(a.shape)
    if 2 * found.differing <= found.count and sum(shape) <= SMALL:
        hits = _hits(a, b, shape)
        words = [_axis_words(hit, len(shape), axis) for axis, hit in enumerate(hits) if len(hit) > 1]
        if any(words):
            return "only in " + ", ".join(filter(None, words))
    return f"in {found.differing:,} of {found.count:,} elements"


def _hits(a: torch.Tensor, b: torch.Tensor, shape: tuple[int, ...]) -> list[Array]:
    """For each dimension, which of its indices hold an element that differs."""
    hits: list[Array] = [np.zeros(size, bool) for size in shape]
    at = 0
    for x, y in arrays(a, b):
        places = at + np.flatnonzero((x != y) & ~((x != x) & (y != y)))
        for hit, index in zip(hits, np.unravel_index(places, shape), strict=True):
            hit[index] = True
        at += x.size
    return hits


def _axis_words(hit: Array, dims: int, axis: int) -> str:
    """`row 3`, `columns 8–15`; "" if it is most of them."""
    indices = [int(index) for index in np.flatnonzero(hit)]
    first, last, count = indices[0], indices[-1], len(indices)
    if 2 * count > len(hit):
        return ""
    is_range = count > 2 and last - first + 1 == count
    if count > MOST_SLICES and not is_range:
        return ""
    noun = {1: "element", 2: ("row", "column")[axis % 2]}.get(dims, f"dimension {axis} at")
    plural = "" if count == 1 or dims > 2 else "s"
    return f"{noun}{plural} {f'{first}–{last}' if is_range else ', '.join(map(str, indices))}"
