"""The random streams of a run, as data; and how to turn them back to before a call.

At a module's exit the streams stand after what it drew. torch on the CPU, `random` and numpy all draw from a
Mersenne Twister, which can be turned back as well as forth: how many numbers a call draws is found by running
it, and the same number is taken back from where the streams stood. Nothing has to be kept while a model runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerstep.engine.random_streams import RandomState, same_state
from layerstep.errors import RecordingError

__all__ = ["Streams"]

Words = Any  # an array of 624 numbers of 32 bits

_LENGTH, _SHIFT = 624, 397
_UPPER, _LOWER, _MIX = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)

TORCH_BYTES = 5056
"""The state of torch's CPU generator: seed, left, seeded, next, 624 words, what is kept of normal numbers."""

MOST_DRAWN = 50_000_000
"""Walking back takes about 70 µs for each 624 numbers; beyond this a stream is not turned back."""


@dataclass(frozen=True, slots=True)
class Twister:
    """A Mersenne Twister: a block of words, and how many of them are used up."""

    words: Words
    used: int

    def behind(self, other: Twister) -> int | None:
        """How many numbers were drawn from here to `other`; None if that cannot be."""
        words, blocks = other.words, 0
        while not _same_block(words, self.words):
            words, blocks = _block_before(words), blocks + 1
            if blocks * _LENGTH > MOST_DRAWN:
                return None
        drawn = blocks * _LENGTH + other.used - self.used
        return drawn if drawn >= 0 else None

    def back(self, drawn: int) -> Twister:
        """As it was that many numbers ago."""
        words, used = self.words, self.used - drawn
        while used < 0 or (used == 0 and drawn):  # a block is made when its first number is drawn
            words, used = _block_before(words), used + _LENGTH
        return Twister(words, used)


def _same_block(one: Words, other: Words) -> bool:
    """Of the first word only the upper bit goes on into later blocks; that of a seed has no other past."""
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
    # Words 397… are whole now, but for word 227, whose lower bits come out of the second half.
    rest = undo(words[:split] ^ before[_SHIFT:])
    before[:split] = rest & _UPPER
    before[1 : split + 1] |= rest & _LOWER
    first = undo(before[_LENGTH - 1 :] ^ before[_SHIFT - 1 : _SHIFT])
    before[0] |= first[0] & _LOWER
    return before


def _torch_twister(state: Tensor) -> Twister | None:
    raw = state.numpy().tobytes()
    if len(raw) != TORCH_BYTES:  # another torch, another layout: this stream is then not turned back
        return None
    left = int(np.frombuffer(raw, np.int32, 1, 8)[0])
    words = np.frombuffer(raw, np.uint64, _LENGTH, 24).astype(np.uint32)
    return Twister(words, _LENGTH + 1 - left)


def _with_torch_twister(state: Tensor, twister: Twister) -> Tensor:
    raw = bytearray(state.numpy().tobytes())
    raw[8:12] = np.int32(_LENGTH + 1 - twister.used).tobytes()
    raw[16:24] = np.uint64(twister.used).tobytes()
    raw[24 : 24 + 8 * _LENGTH] = twister.words.astype(np.uint64).tobytes()
    return torch.frombuffer(raw, dtype=torch.uint8).clone()


class Streams:
    """The streams of a run at one moment."""

    def __init__(self, state: RandomState | None = None) -> None:
        self.state = state or RandomState()

    def encode(self, encode: Callable[[Any, str], Any]) -> dict[str, Any]:
        """As data; `encode` takes care of tensors."""
        state = self.state
        return {
            "torch": encode(state.torch, "random.torch"),
            "cuda": encode(list(state.cuda), "random.cuda"),
            "python": encode(state.python, "random.python"),
            "numpy": _encoded(state.numpy),
        }

    @classmethod
    def decode(cls, data: dict[str, Any], decode: Callable[[Any], Any]) -> Streams:
        state = RandomState()
        state.torch, state.cuda = decode(data["torch"]), decode(data["cuda"])
        state.python = decode(data["python"])
        try:
            state.bits, state.numpy = None, _decoded(data["numpy"])
            random.Random().setstate(state.python)
            if state.numpy is not None:
                np.random.RandomState().set_state(state.numpy)
            torch.Generator().set_state(state.torch)
        except (ValueError, TypeError, RuntimeError):
            raise RecordingError("its random streams cannot be read") from None
        return cls(state)

    def restore(self) -> None:
        """Put the process's streams there; those of devices that are not here are left out."""
        state = self.state
        torch.set_rng_state(state.torch)
        for number, one in enumerate(state.cuda[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one, number)
        random.setstate(state.python)
        if state.numpy is not None and _is_twister(np.random.get_state(legacy=False)):
            np.random.set_state(state.numpy)

    def before(self, start: Streams, end: Streams) -> Streams | None:
        """These streams turned back by what was drawn from `start` to `end`; None where that cannot be."""
        turned = RandomState()
        turned.torch, turned.cuda = self.state.torch, list(self.state.cuda)
        turned.python, turned.numpy = self.state.python, self.state.numpy
        turned.bits = self.state.bits
        trio = [_twisters(streams.state) for streams in (self, start, end)]
        for name in ("torch", "python", "numpy"):
            mine, first, last = (twisters.get(name) for twisters in trio)
            if name == "numpy" and same_state(start.state.numpy, end.state.numpy):
                continue
            if mine is None or first is None or last is None:
                return None
            drawn = first.behind(last)
            if drawn is None:
                return None
            if drawn:
                _turn(turned, name, mine.back(drawn))
        for number, one in enumerate(turned.cuda):
            if number < len(start.state.cuda) and number < len(end.state.cuda):
                turned.cuda[number] = _turn_cuda(one, start.state.cuda[number], end.state.cuda[number])
        return Streams(turned)

    def same_as(self, other: Streams) -> bool:
        """Would both go on with the same numbers?"""
        mine, theirs = _twisters(self.state), _twisters(other.state)
        return all(
            name in theirs
            and twister.used == theirs[name].used
            and _same_block(twister.words, theirs[name].words)
            for name, twister in mine.items()
        )


def _twisters(state: RandomState) -> dict[str, Twister]:
    _, numbers, _ = state.python
    found = {
        "torch": _torch_twister(state.torch),
        "python": Twister(np.array(numbers[:-1], dtype=np.uint32), numbers[-1]),
        "numpy": _numpy_twister(state.numpy),
    }
    return {name: twister for name, twister in found.items() if twister is not None}


def _is_twister(state: Any) -> bool:
    return isinstance(state, dict) and state.get("bit_generator") == "MT19937"


def _numpy_twister(state: Any) -> Twister | None:
    if not _is_twister(state):  # the program has chosen another bit generator: it is not turned back
        return None
    return Twister(np.asarray(state["state"]["key"], dtype=np.uint32), int(state["state"]["pos"]))


def _encoded(state: Any) -> list[Any] | None:
    """As files have it; None for another bit generator than numpy's own."""
    if not _is_twister(state):
        return None
    words, used = state["state"]["key"], state["state"]["pos"]
    return [
        "MT19937",
        np.asarray(words).tolist(),
        int(used),
        int(state["has_gauss"]),
        float(state["gauss"]),
    ]


def _decoded(data: Any) -> Any:
    if data is None:
        return None
    name, words, used, has_gauss, gauss = data
    state = {"key": np.array(words, dtype=np.uint32), "pos": used}
    return {"bit_generator": name, "state": state, "has_gauss": has_gauss, "gauss": gauss}


def _turn(state: RandomState, name: str, twister: Twister) -> None:
    if name == "torch":
        state.torch = _with_torch_twister(state.torch, twister)
    elif name == "python":
        version, _, gauss = state.python
        state.python = (version, (*map(int, twister.words), twister.used), gauss)
    else:
        state.numpy = {**state.numpy, "state": {"key": twister.words, "pos": twister.used}}


def _turn_cuda(state: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """A device counts its numbers: the last eight bytes of the state are the count."""
    counts = [int(np.frombuffer(each.numpy().tobytes()[-8:], np.int64)[0]) for each in (state, start, end)]
    raw = bytearray(state.numpy().tobytes())
    raw[-8:] = np.int64(counts[0] - (counts[2] - counts[1])).tobytes()
    return torch.frombuffer(raw, dtype=torch.uint8).clone()
