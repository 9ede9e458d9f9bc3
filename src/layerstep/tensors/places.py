"""Where in a tensor: the first NaN and Inf, the extremes, the largest and smallest values."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from layerstep._torch import below_everything
from layerstep.tensors.blocks import Array, Scratch, blocks, load
from layerstep.tensors.indices import Index, outer_index
from layerstep.tensors.kinds import Part, open_values

__all__ = ["ValuePlaces", "extremes", "find_places"]

Spot = tuple[int, int]
"""The number of a part, and the place of an element in it, without the repeats of expanded dimensions."""


@dataclass(frozen=True, slots=True)
class ValuePlaces:
    """Indices of elements, the first of each in the order of the tensor; None if there is none.

    `argmin` and `argmax` are of the finite elements. In a sparse tensor only the stored ones count; in a
    nested one an index begins with the number of the part.
    """

    first_nan: Index | None = None
    first_inf: Index | None = None
    argmin: Index | None = None
    argmax: Index | None = None


def find_places(tensor: torch.Tensor) -> ValuePlaces:
    """Find these places in any tensor. Reads every element; never raises."""
    with below_everything(), np.errstate(all="ignore"):
        try:
            parts = open_values(tensor).parts or []
            spots = _first_spots(parts)
            return ValuePlaces(**{name: _index(tensor, parts, spot) for name, spot in spots.items()})
        except Exception:  # a kind of tensor unknown here must not end the user's run
            return ValuePlaces()


def extremes(tensor: torch.Tensor, k: int, *, largest: bool) -> list[tuple[Index, float]]:
    """The `k` largest or smallest elements with their indices, the most extreme first, without NaN.

    Equal elements come in the order of their indices. Never raises: what cannot be read has no extremes.
    """
    with below_everything(), np.errstate(all="ignore"):
        try:
            parts = open_values(tensor).parts or []
            sign = -1.0 if largest else 1.0
            best = _smallest(parts, k, sign)
            return [
                (outer_index(tensor, number, index), sign * value)
                for value, number, index in itertools.islice(_all_copies(parts, best), max(k, 0))
            ]
        except Exception:
            return []


def _walk(parts: list[Part]) -> Iterator[tuple[int, int, Array]]:
    """The blocks in the order of the elements, with the number of the part and the place of the first."""
    scratch = Scratch()
    for number, part in enumerate(parts):
        at, once = 0, part
        for dim in reversed(_repeated(part)):
            once = tuple(t.select(dim, 0) for t in once)
        for block in blocks(once):
            loaded = load(block, scratch)
            yield number, at, loaded
            at += loaded.size


def _repeated(part: Part) -> list[int]:
    """The expanded dimensions, which repeat the same elements."""
    lead = part[0]
    return [d for d in range(lead.dim()) if lead.size(d) > 1 and not any(t.stride(d) for t in part)]


def _first_spots(parts: list[Part]) -> dict[str, Spot]:
    found, low, high = dict[str, Spot](), math.inf, -math.inf
    for number, at, block in _walk(parts):
        least, most = float(np.minimum.reduce(block)), float(np.maximum.reduce(block))
        if not (least > -math.inf and most < math.inf):
            for name, odd in (("first_nan", np.isnan(block)), ("first_inf", np.isinf(block))):
                if name not in found and odd.any():
                    found[name] = (number, at + int(odd.argmax()))
            good = np.isfinite(block)
            if not good.any():
                continue
            least, most = float(block[good].min()), float(block[good].max())
        if least < low:
            low, found["argmin"] = least, (number, at + int((block == least).argmax()))
        if most > high:
            high, found["argmax"] = most, (number, at + int((block == most).argmax()))
    return found


def _smallest(parts: list[Part], k: int, sign: float) -> list[tuple[float, Spot]]:
    """The `k` smallest of the elements times `sign`, in order; equal ones by their places."""
    best, k = list[tuple[float, Spot]](), max(k, 0)
    for number, at, block in _walk(parts):
        values = block * block.dtype.type(sign)
        near = np.flatnonzero(values < best[-1][0] if 0 < k == len(best) else values == values)
        chosen = near[np.argsort(values[near], kind="stable")[:k]]
        rows = ((float(values[place]), (number, at + place)) for place in chosen.tolist())
        best = sorted([*best, *rows])[:k]
    return best


def _all_copies(parts: list[Part], best: list[tuple[float, Spot]]) -> Iterator[tuple[float, int, Index]]:
    """Each element once for every place that it is expanded to, equal ones in the order of the elements."""
    for value, group in itertools.groupby(best, key=lambda each: each[0]):
        copies = (
            ((number, index) for index in _copies(parts[number], place)) for _, (number, place) in group
        )
        yield from ((value, number, index) for number, index in heapq.merge(*copies))


def _copies(part: Part, place: int) -> Iterator[Index]:
    """All indices of one element of a part, in order."""
    shape, again = part[0].shape, _repeated(part)
    kept = [dim for dim in range(len(shape)) if dim not in again]
    index: list[Any] = [0] * len(shape)
    for dim in reversed(kept):
        place, index[dim] = divmod(place, shape[dim])
    for copy in range(math.prod(shape[dim] for dim in again)):  # not itertools.product: it lists its ranges
        for dim in reversed(again):
            copy, index[dim] = divmod(copy, shape[dim])
        yield tuple(index)


def _index(tensor: torch.Tensor, parts: list[Part], spot: Spot) -> Index:
    number, place = spot
    return outer_index(tensor, number, next(_copies(parts[number], place)))
