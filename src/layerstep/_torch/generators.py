"""The states of torch's random generators, byte by byte. Seen on torch 2.13.0."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["cpu_words", "cuda_count", "with_cpu_words", "with_cuda_count"]

_BYTES = 5056
"""The state of the CPU generator: seed, left, seeded, next, 624 words, what is kept of normal numbers."""
_WORDS = 624


def cpu_words(state: Tensor) -> tuple[Any, int] | None:
    """The words of the Mersenne Twister in a state of the CPU generator, and how many are used up.

    Fallback: None where another torch has another layout; this stream is then not turned back.
    """
    raw = state.numpy().tobytes()
    if len(raw) != _BYTES:
        return None
    left = int(np.frombuffer(raw, np.int32, 1, 8)[0])
    return np.frombuffer(raw, np.uint64, _WORDS, 24).astype(np.uint32), _WORDS + 1 - left


def with_cpu_words(state: Tensor, words: Any, *, used: int) -> Tensor:
    """A state of the CPU generator with other words."""
    raw = bytearray(state.numpy().tobytes())
    raw[8:12] = np.int32(_WORDS + 1 - used).tobytes()
    raw[16:24] = np.uint64(used).tobytes()
    raw[24 : 24 + 8 * _WORDS] = words.astype(np.uint64).tobytes()
    return torch.frombuffer(raw, dtype=torch.uint8).clone()


def cuda_count(state: Tensor) -> int:
    """How many numbers a CUDA generator has drawn: the last eight bytes of its state."""
    return int(np.frombuffer(state.numpy().tobytes()[-8:], np.int64)[0])


def with_cuda_count(state: Tensor, count: int) -> Tensor:
    """A state of a CUDA generator that has drawn so many numbers."""
    raw = bytearray(state.numpy().tobytes())
    raw[-8:] = np.int64(count).tobytes()
    return torch.frombuffer(raw, dtype=torch.uint8).clone()
