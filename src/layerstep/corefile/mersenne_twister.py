"""The Mersenne Twister, turned back.

torch on the CPU, `random` and numpy all draw from it. A core file holds the streams as they are after a call
drew from them, and a rerun needs the numbers that the call had. Drawing again from the seed is no way: numpy
and `random` do not keep theirs, and from torch's it can take hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Twister", "same_block"]

Words = Any  # an array of 624 numbers of 32 bits

_LENGTH, _SHIFT = 624, 397
_UPPER, _LOWER, _MIX = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)

MOST_DRAWN = 50_000_000
"""Walking back takes about 70 µs for each 624 numbers; beyond this a stream is not turned back."""


@dataclass(frozen=True, slots=True)
class Twister:
    """A Mersenne Twister: a block of words, and how many of them are used up."""

    words: Words
    used: int

    def behind(self, other: Twister) -> int | None:
        """How many numbers were drawn from here to `other`; None if `other` does not follow."""
        words, blocks = other.words, 0
        while not same_block(words, self.words):
            words, blocks = _block_before(words), blocks + 1
            if blocks * _LENGTH > MOST_DRAWN:
                return None
        drawn = blocks * _LENGTH + other.used - self.used
        return drawn if drawn >= 0 else None

    def back(self, drawn: int) -> Twister:
        """The state that many numbers ago."""
        words, used = self.words, self.used - drawn
        while used < 0 or (used == 0 and drawn):  # a block is made when its first number is drawn
            words, used = _block_before(words), used + _LENGTH
        return Twister(words, used)


def same_block(one: Words, other: Words) -> bool:
    """Compare two blocks.

    Only the upper bit of the first word matters: the rest of it enters no later block.
    """
    return bool(np.array_equal(one[1:], other[1:]) and (one[0] ^ other[0]) & _UPPER == 0)


def _block_before(words: Words) -> Words:
    """The recurrence of the twister, solved for the older words."""
    before = np.zeros(_LENGTH, dtype=np.uint32)
    lower = np.zeros(_LENGTH, dtype=np.uint32)

    def undo(mixed: Words) -> Words:
        odd = (mixed & _UPPER) != 0
        return ((mixed ^ np.where(odd, _MIX, np.uint32(0))) << np.uint32(1)) | odd.astype(np.uint32)

    split = _LENGTH - _SHIFT
    pairs = undo(words[split:] ^ words[:_SHIFT])  # upper bit of word k, lower bits of word k + 1
    before[split:] = pairs & _UPPER
    lower[split + 1 :] = pairs[:-1] & _LOWER
    before[split + 1 :] |= lower[split + 1 :]
    # Words 397… are whole now; word 227 lacks its lower bits, which come from the second half.
    rest = undo(words[:split] ^ before[_SHIFT:])
    before[:split] = rest & _UPPER
    before[1 : split + 1] |= rest & _LOWER
    first = undo(before[_LENGTH - 1 :] ^ before[_SHIFT - 1 : _SHIFT])
    before[0] |= first[0] & _LOWER
    return before
