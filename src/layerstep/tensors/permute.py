"""Were the elements of one tensor moved to make the other: transposed, reversed, rolled, permuted?"""

from __future__ import annotations

import itertools
from collections import OrderedDict

import numpy as np

from layerstep.tensors.blocks import Array

__all__ = ["moved", "reordered_axes"]

LONGEST = 1 << 17  # slices along one dimension: a row of the look-up each
MOST_AXES = 5
MOST_NAMED = 4


def reordered_axes(x: Array, y: Array) -> str:
    """How the dimensions of the first were reordered to give the second; "" if they were not."""
    if x.ndim != y.ndim or not 2 <= x.ndim <= MOST_AXES:
        return ""
    for axes in itertools.permutations(range(x.ndim)):
        if axes == tuple(range(x.ndim)) or tuple(x.shape[axis] for axis in axes) != y.shape:
            continue
        if np.array_equal(x.transpose(axes), y):
            return "transposed" if x.ndim == 2 else f"with its dimensions in the order {list(axes)}"
    return ""


def moved(x: Array, y: Array) -> str:
    """How the elements of the first were moved to give the second, of the same shape; "" if they were not.

    Both are integers that are equal where the elements are, such as the bits of floats.
    """
    if x.ndim == 0 or x.sum(dtype=np.uint64) != y.sum(dtype=np.uint64):
        return ""
    swapped = reordered_axes(x, y)
    if swapped:
        return f"the second is the first, {swapped}"
    for axis in range(x.ndim):
        if x.shape[axis] > 2 and np.array_equal(np.flip(x, axis), y):
            return f"the second is the first with its {_slices(x, axis)} in reverse"
        order = _order(x, y, axis)
        if order is not None:
            return f"the same values, {_slices(x, axis)} {_permuted(order)}"
    return _misread(x, y)


def _misread(x: Array, y: Array) -> str:
    if x.ndim <= MOST_AXES:
        for one, other in itertools.combinations(range(x.ndim), 2):
            if np.array_equal(np.swapaxes(x, one, other).reshape(x.shape), y):
                return (
                    f"the second is the first with dimensions {one} and {other} swapped and read in the old"
                    " shape: a view in place of a transpose"
                )
    values = np.sort(x, axis=None)
    is_varied = 2 * np.count_nonzero(values[1:] != values[:-1]) > values.size  # or else it says nothing
    is_same = is_varied and np.array_equal(np.sort(y, axis=None), values)
    return "the same values in another order" if is_same else ""


def _slices(x: Array, axis: int) -> str:
    if x.ndim == 1:
        return "elements"
    return ("rows", "columns")[axis] if x.ndim == 2 else f"slices along dimension {axis}"


def _order(x: Array, y: Array, axis: int) -> Array | None:
    """The order with slice i of y equal to slice order[i] of x; None if there is none."""
    size = x.shape[axis]
    if not 2 <= size <= LONGEST:
        return None
    rows, others = (np.ascontiguousarray(np.moveaxis(each, axis, 0)).reshape(size, -1) for each in (x, y))
    if not (rows == others[0]).all(axis=1).any():
        return None
    places: dict[bytes, OrderedDict[int, None]] = {}
    for index in range(size):
        places.setdefault(rows[index].tobytes(), OrderedDict())[index] = None
    order: list[int] = []
    for index in range(size):
        waiting = places.get(others[index].tobytes())
        if not waiting:
            return None
        following = order[-1] + 1 if order else index  # of equal slices the one that keeps neighbours
        if following in waiting:
            del waiting[following]
        else:
            following, _ = waiting.popitem(last=False)
        order.append(following)
    return np.array(order)


def _permuted(order: Array) -> str:
    """A permutation in words. Blocks that moved as a whole are probably heads."""
    size = order.size
    widths = [width for width in range(size // 2, 1, -1) if size % width == 0]
    for width in widths:
        blocks = order.reshape(-1, width)
        starts = blocks[:, 0]
        if not (starts % width).any() and np.array_equal(blocks, starts[:, None] + np.arange(width)):
            return f"permuted in blocks of {width} (heads?): {_moves(starts // width)}"
    for width in (size, *widths):
        if width % 2 == 0 and width >= 6 and _is_interleaved(order, width):
            return f"interleaved in pairs or back within blocks of {width} (a rotary embedding's layout?)"
    step = int(-order[0]) % size
    if size > 2 and np.array_equal((np.arange(size) - step) % size, order):
        return f"rolled by {step if 2 * step <= size else step - size}"
    return f"permuted: {_moves(order)}"


def _is_interleaved(order: Array, width: int) -> bool:
    """Does every block interleave its halves into pairs, or split pairs into halves?"""
    plain = np.arange(order.size)
    woven = plain.reshape(-1, 2, width // 2).swapaxes(1, 2).reshape(-1)
    parted = plain.reshape(-1, width // 2, 2).swapaxes(1, 2).reshape(-1)
    return np.array_equal(order, woven) or np.array_equal(order, parted)


def _moves(order: Array) -> str:
    """The new place of each that moved: 0→1, 1→0."""
    went = sorted((int(old), new) for new, old in enumerate(order) if old != new)
    named = ", ".join(f"{old}→{new}" for old, new in went[:MOST_NAMED])
    return named + (f", … {len(went) - MOST_NAMED} more" if len(went) > MOST_NAMED else "")
