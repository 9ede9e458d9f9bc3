"""Order statistics: the values at given ranks, of values in memory or of more than fit there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from layerstep.tensors.blocks import F32, F64, Array

__all__ = ["Counted", "Streamed", "at_ranks"]

DIGIT = 16  # bits that one pass counts


class Counted:
    """Sorted values in memory, with the count of each."""

    def __init__(self, values: Array, counts: Array) -> None:
        order = np.argsort(values, kind="stable")
        self._values, self._counts = values[order], counts[order]
        self._totals = np.cumsum(self._counts)
        self.size = int(self._totals[-1]) if values.size else 0

    def at(self, ranks: Sequence[int]) -> list[float]:
        """The values at these ranks."""
        found: list[float] = self._values[np.searchsorted(self._totals, ranks, side="right")].tolist()
        return found

    def distances(self, middle: float) -> Counted:
        """How far each is from the middle."""
        return Counted(np.abs(self._values - middle), self._counts)

    def chunks(self) -> Iterable[tuple[Array, Array | None]]:
        yield self._values, self._counts


class Streamed:
    """Values that are read in chunks for each question, because they are too many to keep."""

    def __init__(self, read: Callable[[], Iterable[Array]]) -> None:
        self._read = read
        self.size = sum(chunk.size for chunk in read())

    def at(self, ranks: Sequence[int]) -> list[float]:
        return at_ranks(self._read, ranks)

    def distances(self, middle: float) -> Streamed:
        return Streamed(lambda: (np.abs(chunk.astype(F64) - middle) for chunk in self._read()))

    def chunks(self) -> Iterable[tuple[Array, Array | None]]:
        return ((chunk, None) for chunk in self._read())


def at_ranks(read: Callable[[], Iterable[Array]], ranks: Sequence[int]) -> list[float]:
    """The values at these ranks among all; the chunks hold finite values of one float dtype.

    Each pass counts one digit of the keys that agree with an answer in all digits before it.
    """
    dtype = next(iter(read())).dtype
    found, left = np.zeros(len(ranks), np.uint64), np.array(ranks, np.int64)
    for digit in reversed(range(dtype.itemsize * 8 // DIGIT)):
        known, slots = np.unique(found, return_inverse=True)
        table = np.zeros((known.size, 1 << DIGIT), np.int64)
        for chunk in read():
            _tally(_keys(chunk), known, table, digit * DIGIT)
        totals = table.cumsum(axis=1)
        for index, slot in enumerate(slots.reshape(-1).tolist()):
            value = int(np.searchsorted(totals[slot], left[index], side="right"))
            left[index] -= totals[slot, value] - table[slot, value]
            found[index] = (int(found[index]) << DIGIT) | value
    return _floats(found, dtype)


def _tally(keys: Array, known: Array, table: Array, shift: int) -> None:
    """Count the digit at `shift` of those keys whose digits before it are known."""
    bits = keys.dtype.itemsize * 8
    top = (keys >> keys.dtype.type(bits - DIGIT)).astype(np.intp)
    if shift == bits - DIGIT:
        table[0] += np.bincount(top, minlength=1 << DIGIT)
        return
    near = np.zeros(1 << DIGIT, np.bool_)  # by the first digit alone: most keys are none of these
    near[(known >> np.uint64(bits - DIGIT - shift - DIGIT)).astype(np.intp)] = True
    keys = keys[near[top]].astype(np.uint64)
    before = keys >> np.uint64(shift + DIGIT)
    slots = np.minimum(np.searchsorted(known, before), known.size - 1)
    same = known[slots] == before
    digits = (keys[same] >> np.uint64(shift)).astype(np.intp) & ((1 << DIGIT) - 1)
    np.add.at(table.reshape(-1), (slots[same] << DIGIT) + digits, 1)


def _keys(chunk: Array) -> Array:
    """Integers in the order of the floats: flip all bits of a negative one, the sign of another."""
    kind, sign, every = _bits(chunk.dtype)
    raw = chunk.view(kind)
    keys: Array = raw ^ np.where(raw & sign, every, sign)
    return keys


def _floats(keys: Array, dtype: np.dtype[Any]) -> list[float]:
    kind, sign, every = _bits(dtype)
    raw = keys.astype(kind)
    floats = (raw ^ np.where(raw & sign, sign, every)).view(dtype)
    return [float(each) + 0.0 for each in floats]  # no -0.0


def _bits(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], Any, Any]:
    kind = np.dtype(np.uint32 if dtype == F32 else np.uint64)
    return kind, kind.type(1 << (kind.itemsize * 8 - 1)), ~kind.type(0)
