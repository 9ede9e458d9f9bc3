"""Compare two tensors: how far apart they are, where first, and in words what was done to one of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from layerstep._torch import below_everything
from layerstep.tensors.blocks import F64, Array, split
from layerstep.tensors.comparison import Comparison
from layerstep.tensors.explain_difference import explain, shapes_differ
from layerstep.tensors.kinds import COPY_LIMIT, open_values
from layerstep.tensors.pairs import arrays, coarser, gap_of, max_ulp, same_bits
from layerstep.tensors.shapes import shape_line

__all__ = ["compare"]

MOST_EXPANDED = 1 << 28
"""The most elements: an expanded tensor can have any number without memory behind it."""


def compare(a: torch.Tensor, b: torch.Tensor) -> Comparison:
    """Compare any two tensors element by element. Never raises.

    It holds only a few blocks, except while it looks for a permutation in up to a few million elements.
    """
    with below_everything(), np.errstate(all="ignore"):
        try:
            return _compare(a, b)
        except Exception as error:  # a kind of tensor unknown here must not end the user's run
            return Comparison(f"cannot be compared: {type(error).__name__}: {error}".partition("\n")[0][:200])


def _compare(a: torch.Tensor, b: torch.Tensor) -> Comparison:
    (one, why_one), (other, why_other) = _dense(a), _dense(b)
    if one is None or other is None:
        which, why = ("first", why_one) if one is None else ("second", why_other)
        return Comparison(f"the {which} has no values to compare: {why}")
    if one.shape != other.shape:
        return Comparison(shapes_differ(one, other))
    if not one.numel():
        return Comparison(f"both are empty: {shape_line(one)}", is_close=True)
    if one.numel() > MOST_EXPANDED and (_is_expanded(one) or _is_expanded(other)):
        return Comparison(f"expanded to {one.numel():,} elements, too many to go through; index a part of it")
    gaps = _Gaps(one.dtype, other.dtype)
    for (a_block, b_block), (x, y) in zip(split((one, other)), arrays(one, other), strict=True):
        gaps.compare(a_block, b_block)
        gaps.add(x, y)
    found = gaps.result(tuple(one.shape), max_ulp(one, other) if gaps.differing else 0)
    line = _Line(math.nan, math.nan)
    if found.max_abs is not None:
        found, line = _with_moments(found, gaps.peaks, one, other)
    words = explain(one, other, found, line=line) if found.differing else _equal(one, other)
    return replace(found, words=words + (", of the local shards" if why_one or why_other else ""))


def _dense(tensor: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """A plain tensor of the values and a remark; or None and the reason."""
    values = open_values(tensor)
    if values.parts is None:
        return None, values.note
    if values.layout in ("", "mkldnn"):
        return values.parts[0][0], ""
    if values.layout == "dtensor":
        return _dense(values.parts[0][0])[0], values.note
    if values.layout == "nested":
        return None, "a nested tensor; compare the tensors of its `unbind()`"
    if tensor.numel() > COPY_LIMIT:
        return None, f"{values.layout}, too large to unpack only for a look"
    plain = tensor.detach().dequantize() if tensor.is_quantized else tensor.detach().to_dense()
    return plain, ""


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _equal(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.dtype != b.dtype:
        return f"the same values: only the dtype differs, {shape_line(a)} and {shape_line(b)}"
    if same_bits(a, b):
        return "equal to the bit"
    return "equal in value; zeros of the other sign, or NaN of other bits"


class _Gaps:
    """The first pass: what differs, where, by how much, and whether it is within the tolerances."""

    def __init__(self, a: torch.dtype, b: torch.dtype) -> None:
        self.has_ulp = coarser(a, b) is not None
        self.promoted = _promoted(a, b)
        self.tolerances = (
            max(_TOLERANCES.get(a, (0.0, 0.0))[0], _TOLERANCES.get(b, (0.0, 0.0))[0]),
            max(_TOLERANCES.get(a, (0.0, 0.0))[1], _TOLERANCES.get(b, (0.0, 0.0))[1]),
        )
        self.count = self.differing = self.finite_in_one = 0
        self.first = -1
        self.there: tuple[Any, Any] | None = None
        self.max_abs: float | None = None
        self.max_rel = 0.0
        self.peaks = (0.0, 0.0)
        self.is_close = True

    def compare(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """Compare as `assert_close` does: by `isclose` in the promoted dtype, with its roundings."""
        if self.is_close:
            rtol, atol = self.tolerances
            x, y = a.cpu().to(self.promoted), b.cpu().to(self.promoted)
            self.is_close = bool(torch.isclose(x, y, rtol=rtol, atol=atol, equal_nan=True).all())

    def add(self, x: Array, y: Array) -> None:
        same = (x == y) | ((x != x) & (y != y))
        different = x.size - int(np.count_nonzero(same))
        if different and self.first < 0:
            at = int(np.argmin(same))
            self.first, self.there = self.count + at, (x[at].item(), y[at].item())
        self.count += x.size
        self.differing += different
        left, right = np.isfinite(x), np.isfinite(y)
        self.finite_in_one += int(np.count_nonzero(left != right))
        finite = left & right
        if finite.any():
            self._measure(x[finite], y[finite])

    def _measure(self, x: Array, y: Array) -> None:
        gap, one, other = gap_of(x, y), _sizes(x), _sizes(y)
        larger = np.maximum(one, other)
        relative = np.divide(gap, larger, out=np.zeros_like(gap), where=larger > 0)
        self.max_abs = max(self.max_abs or 0.0, float(gap.max()))
        self.max_rel = max(self.max_rel, min(float(relative.max()), 2.0))
        self.peaks = (max(self.peaks[0], float(one.max())), max(self.peaks[1], float(other.max())))

    def result(self, shape: tuple[int, ...], ulp: int | None) -> Comparison:
        return Comparison(
            "",
            count=self.count,
            differing=self.differing,
            first=tuple(int(i) for i in np.unravel_index(self.first, shape)) if self.differing else None,
            there=self.there,
            max_abs=self.max_abs,
            max_rel=None if self.max_abs is None else self.max_rel,
            max_ulp=ulp if self.has_ulp and self.max_abs is not None else None,
            is_close=self.is_close,
            tolerances=self.tolerances,
            finite_in_one=self.finite_in_one,
        )


class _Line(NamedTuple):
    """The best line from the first to the second: a factor and a shift."""

    slope: float
    shift: float


def _with_moments(
    found: Comparison, peaks: tuple[float, float], a: torch.Tensor, b: torch.Tensor
) -> tuple[Comparison, _Line]:
    """The second pass: means and products, in units in which squares neither overflow nor vanish."""
    largest = found.max_abs or 0.0
    up, down, unit = (math.frexp(size)[1] if size < math.inf else 1024 for size in (*peaks, largest))
    n, total, mean, spread = 0, 0.0, np.zeros(2), np.zeros((2, 2))
    for x, y in arrays(a, b):
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.any():
            continue
        x, y = x[finite], y[finite]
        total += float(np.ldexp(gap_of(x, y), -unit).sum())
        both = np.stack([np.ldexp(_real(x), -up), np.ldexp(_real(y), -down)])
        size, centre = both.shape[1], both.mean(axis=1)
        rest, off = both - centre[:, None], centre - mean
        spread += rest @ rest.T + np.outer(off, off) * (n * size / (n + size))  # Chan's merge
        mean += off * (size / (n + size))
        n += size
    products = spread + n * np.outer(mean, mean)
    slope = float(np.ldexp(products[0, 1] / products[0, 0], down - up)) if products[0, 0] else math.nan
    line = _Line(slope, float(np.ldexp(mean[1], down) - np.ldexp(mean[0], up)))
    elements = n // 2 if a.is_complex() or b.is_complex() else n
    found = replace(
        found,
        mean_abs=float(np.ldexp(total / elements, unit)),
        cosine=_angle(products),
        pearson=_angle(_without_dust(spread, n * (8 * np.finfo(F64).eps * mean) ** 2)),
    )
    return found, line


def _without_dust(spread: Array, dust: Array) -> Array:
    """The spread of a constant is rounding errors: make it 0."""
    return np.where(np.diag(spread)[:, None] <= dust[:, None], 0.0, spread)


def _angle(products: Array) -> float | None:
    lengths = math.sqrt(products[0, 0]) * math.sqrt(products[1, 1])
    return max(-1.0, min(1.0, float(products[0, 1]) / lengths)) if lengths else None


def _sizes(values: Array) -> Array:
    sizes: Array = np.abs(values.astype(F64) if values.dtype.kind in "iu" else values)
    return sizes


def _real(values: Array) -> Array:
    """Complex numbers as pairs, whose cosine is the real part of the complex one."""
    return values.view(F64) if values.dtype.kind == "c" else values.astype(F64)


_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""The tolerances of `torch.testing.assert_close`, which are private there; a test compares the answers."""


def _promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype in which `assert_close` compares. Floats of one byte have no arithmetic and are widened."""
    wide = {torch.uint16: torch.int64, torch.uint32: torch.int64, torch.uint64: torch.int64}
    if a != b:
        a, b = wide.get(a, a), wide.get(b, b)
    a, b = (torch.float32 if d.is_floating_point and d.itemsize == 1 else d for d in (a, b))
    return torch.promote_types(a, b)
