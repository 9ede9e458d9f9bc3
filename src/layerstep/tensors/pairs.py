"""Two tensors of one shape, block by block: as numbers, as bits, as steps of a dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from layerstep._torch.tensors import as_numpy
from layerstep.tensors.blocks import F64, Array, split

__all__ = ["arrays", "bits_of", "coarser", "gap_of", "max_ulp", "same_bits", "same_values"]

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def arrays(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[Array, Array]]:
    """Flat blocks of both in the order of the elements, in a dtype that holds the values of either."""
    kind = _array_kind(a.dtype, b.dtype)
    for x, y in split((a, b)):
        yield _as_array(x, kind), _as_array(y, kind)


def _array_kind(a: torch.dtype, b: torch.dtype) -> np.dtype[Any]:
    if a.is_complex or b.is_complex:
        return np.dtype(np.complex128)
    if a.is_floating_point or b.is_floating_point or (a != b and torch.uint64 in (a, b)):
        return F64
    return np.dtype(np.uint64 if a == torch.uint64 else np.int64)


def _as_array(tensor: torch.Tensor, kind: np.dtype[Any]) -> Array:
    """A copy as an array. `numpy()` of a lazy clone would copy the whole storage."""
    block: Array = np.empty(tuple(tensor.shape), kind)
    torch.from_numpy(block).copy_(tensor)
    return block.reshape(-1)


def gap_of(x: Array, y: Array) -> Array:
    """|x - y| in float64; for integers also where the difference exceeds int64."""
    gap: Array
    if x.dtype.kind in "iu":
        gap = (np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)).astype(F64)
    else:
        gap = np.abs(x - y)
    return gap


def coarser(a: torch.dtype, b: torch.dtype) -> torch.dtype | None:
    """The floating dtype with the larger steps; None if neither is one, or one is complex."""
    floats = [dtype for dtype in (a, b) if dtype.is_floating_point]
    if not floats or a.is_complex or b.is_complex:
        return None
    return max(floats, key=lambda dtype: torch.finfo(dtype).eps)


def max_ulp(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """The most steps of the coarser dtype between two elements that are both finite."""
    dtype = coarser(a.dtype, b.dtype)
    if dtype is None:
        return None
    most = 0
    for pair in split((a, b)):
        x, y = (part.cpu().to(dtype) for part in pair)
        wide = (x.to(torch.float64), y.to(torch.float64))  # isfinite does not take float8
        finite = (torch.isfinite(wide[0]) & torch.isfinite(wide[1])).reshape(-1)
        if finite.any():
            steps = [as_numpy(_ordered(bits_of(part)).reshape(-1)[finite]) for part in (x, y)]
            high, low = (pick(*steps).astype(np.uint64) for pick in (np.maximum, np.minimum))
            most = max(most, int((high - low).max()))  # modular: from -max to max of float64 is over int64
    return most


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of the same bits; a complex one as two."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().contiguous().view(_BITS[tensor.dtype.itemsize])


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Float bits as integers in the order of the numbers, -0 and 0 both 0."""
    low = torch.iinfo(bits.dtype).min
    wide = bits.to(torch.int64)
    return torch.where(wide < 0, low - wide, wide)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two tensors of one dtype have the same bits?"""
    return all(torch.equal(bits_of(x.cpu()), bits_of(y.cpu())) for x, y in split((a, b)))


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Are the values equal? NaN equals NaN, and 0 equals -0."""
    return all(bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in arrays(a, b))
