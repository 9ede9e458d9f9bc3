"""How the values of any tensor are spread: percentiles, histogram, outliers."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from layerstep._torch import below_everything
from layerstep._torch.tensors import as_numpy
from layerstep.tensors.blocks import F64, Array, Scratch, distinct, load, pieces
from layerstep.tensors.kinds import Part, open_values
from layerstep.tensors.order import Counted, Streamed

__all__ = ["PERCENTS", "Spread", "spread"]

PERCENTS = (0.0, 1.0, 5.0, 25.0, 50.0, 75.0, 95.0, 99.0, 100.0)
FAR = 6 * 1.4826  # times the MAD: six standard deviations of normal values
ONE_SIDED = 0.25  # SiLU of normal values: 0.13, an exponential distribution: 0.17, a normal one: 1
LAST = sys.float_info.max
SORTED = 1 << 17  # elements: up to so many are sorted in memory, in 9 MB


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of the finite values. Exact, unless `sampled` says how many elements were read.

    Outliers are outside `outlier_low … outlier_high`, which is the median ± 6 · 1.4826 · MAD. With a MAD of 0
    (half of the values are the same) there are none, and the bounds are the extremes. The edges cover all
    values, unless a few far ones would leave the rest in one bin. Then `below` and `above` say how many are
    beyond the edges; the first and the last bin count them.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    percentiles: tuple[tuple[float, float], ...]
    median: float
    mad: float
    outliers: int
    outlier_low: float
    outlier_high: float
    nonfinite: int
    below: int
    above: int
    sampled: int | None

    @property
    def is_one_sided(self) -> bool:
        """Is nearly all of it on one side of the median, as after a ReLU, GELU or softmax?

        Far values on that side are then its tail. Uses percentiles, so that one far value does not decide.
        """
        at = dict(self.percentiles)
        below, above = self.median - at[1.0], at[99.0] - self.median
        return min(below, above) < ONE_SIDED * max(below, above)


def spread(
    tensor: torch.Tensor, *, bins: int = 40, exact: bool = False, limit: int = 1 << 20
) -> Spread | None:
    """Percentiles, histogram and outliers of any tensor; None if it has no finite value that can be read.

    Of more than `limit` elements it reads an even sample, unless `exact` or the dtype has at most two bytes.
    """
    with below_everything(), np.errstate(all="ignore"):
        try:
            return _spread(tensor, max(1, bins), None if exact else max(1, limit))
        except Exception:  # a kind of tensor unknown here must not end the user's run
            return None


def _spread(tensor: torch.Tensor, bins: int, limit: int | None) -> Spread | None:
    parts = [part for part in open_values(tensor).parts or [] if part[0].numel()]
    if not parts:
        return None
    repeat = 1
    if len(parts) == 1:
        part, repeat = distinct(parts[0])
        parts = [part]
    stored = sum(part[0].numel() for part in parts)
    few = len(parts[0]) == 1 and parts[0][0].dtype.itemsize <= 2
    step = 1 if few or limit is None or stored <= limit else -(-stored // limit)
    while step > 1 and math.gcd(step, stored) > 1:  # a multiple of the width would read a single column
        step += 1
    seen, repeat = (stored, repeat) if step == 1 else (-(-stored // step), 1)
    values: Counted | Streamed = Streamed(lambda: _finite(parts, step)) if not few else _by_pattern(parts)
    if isinstance(values, Streamed) and seen <= SORTED:
        held = np.concatenate([chunk.astype(F64) for chunk in _finite(parts, step)])
        values = Counted(held, np.ones(held.size, np.int64))
    return _describe(values, bins, repeat, seen, seen if step > 1 else None) if values.size else None


def _finite(parts: list[Part], step: int) -> Iterator[Array]:
    scratch, at = Scratch(), 0
    for part in parts:
        for piece in pieces(part, -at % step, step=step):
            block = load(piece, scratch)
            yield block[np.isfinite(block)]
        at += part[0].numel()


def _by_pattern(parts: list[Part]) -> Counted:
    """Values of one or two bytes have at most 65,536 patterns."""
    dtype = parts[0][0].dtype
    bits, kind = (torch.uint8, np.uint8) if dtype.itemsize == 1 else (torch.int16, np.uint16)
    counts = np.zeros(1 << 8 * dtype.itemsize, np.int64)
    for piece in (piece[0] for part in parts for piece in pieces(part)):
        raw = torch.empty(piece.shape, dtype=bits, device="cpu").copy_(piece.resolve_neg().view(bits))
        counts += np.bincount(as_numpy(raw.view(-1)).view(kind), minlength=counts.size)
    patterns = torch.from_numpy(np.arange(counts.size).astype(kind).view(np.uint8))
    values = patterns.view(dtype).to(torch.float64).numpy()
    there = np.isfinite(values) & (counts > 0)
    return Counted(values[there], counts[there])


def _describe(values: Counted | Streamed, bins: int, repeat: int, seen: int, sampled: int | None) -> Spread:
    at = _percentiles(values, PERCENTS, repeat)
    middle, low, high = at[PERCENTS.index(50)], at[0], at[-1]
    mad = _percentiles(values.distances(middle), (50.0,), repeat)[0]
    bounds = (max(middle - FAR * mad, -LAST), min(middle + FAR * mad, LAST)) if mad else (low, high)
    edges = _edges(at, bounds, bins)
    counts, below, above, outliers = np.zeros(bins, np.int64), 0, 0, 0
    for chunk, weights in values.chunks():
        counts += _histogram(chunk, edges, weights)
        below += _total(chunk < edges[0], weights)
        above += _total(chunk > edges[-1], weights)
        outliers += _total((chunk < bounds[0]) | (chunk > bounds[1]), weights)
    counts[0] += below
    counts[-1] += above
    return Spread(
        edges=tuple(edges.tolist()),
        counts=tuple(int(repeat * count) for count in counts),
        percentiles=tuple(zip(PERCENTS, at, strict=True)),
        median=middle,
        mad=mad,
        outliers=repeat * outliers,
        outlier_low=bounds[0],
        outlier_high=bounds[1],
        nonfinite=repeat * (seen - values.size),
        below=repeat * below,
        above=repeat * above,
        sampled=sampled,
    )


def _percentiles(values: Counted | Streamed, percents: tuple[float, ...], repeat: int) -> list[float]:
    """A percentile by numpy's rule "linear": between the two nearest values."""
    places = [percent / 100 * (values.size * repeat - 1) for percent in percents]
    ranks = [int(rounded) // repeat for place in places for rounded in (math.floor(place), math.ceil(place))]
    found = values.at(ranks)
    return [
        _between(low, high, place % 1)
        for place, low, high in zip(places, found[::2], found[1::2], strict=True)
    ]


def _between(low: float, high: float, share: float) -> float:
    if low == high:
        return low
    return low + share * (high - low) if high - low < math.inf else low * (1 - share) + high * share


def _edges(at: list[float], bounds: tuple[float, float], bins: int) -> Array:
    """Even bins over all values; if the middle half would fall into one bin, over the values near it."""
    named = dict(zip(PERCENTS, at, strict=True))
    low, high = at[0], at[-1]
    wide = high / bins - low / bins
    if bounds != (low, high) and named[75] - named[25] < wide:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    elif bounds == (low, high) and 0 < named[99] - named[1] < wide:  # half of them are the same value
        low, high = max(low, 2 * named[1] - named[99]), min(high, 2 * named[99] - named[1])
    size = max(abs(low), abs(high))
    if high / 2 - low / 2 <= size * 1e-12:  # all the same: room to both sides
        low, high = max(low - (size / 2 or 0.5), -LAST), min(high + (size / 2 or 0.5), LAST)
    steps = np.arange(bins + 1) / bins
    edges: Array = np.maximum.accumulate(np.clip(low * (1 - steps) + high * steps, low, high))
    edges[0], edges[-1] = low, high
    return edges


def _histogram(chunk: Array, edges: Array, weights: Array | None) -> Array:
    """Count as numpy does: a value on an edge is in the bin above, on the last edge in the last bin."""
    bins = edges.size - 1
    inside = (chunk >= edges[0]) & (chunk <= edges[-1])
    slots = np.minimum(np.searchsorted(edges, chunk[inside], side="right") - 1, bins - 1)
    if weights is None:
        return np.bincount(slots, minlength=bins)
    return np.bincount(slots, weights[inside], minlength=bins).astype(np.int64)


def _total(chosen: Array, weights: Array | None) -> int:
    return int(np.count_nonzero(chosen) if weights is None else weights[chosen].sum())
