"""Blocks: any part of a tensor as flat float arrays, one after the other, that stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from layerstep._torch import is_lazy_clone
from layerstep._torch.tensors import as_numpy
from layerstep.tensors.bfloat16 import unpack, words_of
from layerstep.tensors.kinds import Part

__all__ = [
    "BLOCK",
    "F32",
    "F64",
    "Array",
    "Scratch",
    "blocks",
    "blocks_in_any_order",
    "distinct",
    "load",
    "pieces",
    "split",
]

Array = npt.NDArray[Any]

BLOCK = 1 << 17  # elements, half a MiB of float32: 0.35 ns each, calls included; twice or half of it: 0.39
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


class Scratch:
    """Memory that each block uses again: fresh pages would cost as much as the counting."""

    def __init__(self) -> None:
        self._slots: dict[str, Array] = {}
        self._loaded: tuple[Array, torch.Tensor] | None = None

    def to_load(self, size: int, dtype: npt.DTypeLike) -> tuple[Array, torch.Tensor]:
        """Room for a block, as numpy and as torch see it."""
        if self._loaded is None or self._loaded[0].size != size or self._loaded[0].dtype != dtype:
            block = self.room("loaded", size, dtype)
            self._loaded = block, torch.from_numpy(block)
        return self._loaded

    def room(self, slot: str, size: int, dtype: npt.DTypeLike) -> Array:
        kind, kept = np.dtype(dtype), self._slots.get(slot)
        if kept is None or kept.dtype != kind or kept.size < size:
            kept = self._slots[slot] = np.empty(size, kind)
        return kept[:size]


def distinct(part: Part) -> tuple[Part, int]:
    """One index of each expanded dimension, and how often it repeats; the others in the order of memory."""
    lead = part[0]
    again = [d for d in range(lead.dim()) if lead.size(d) > 1 and not any(t.stride(d) for t in part)]
    repeat = math.prod(lead.size(d) for d in again)
    for d in reversed(again):
        part = tuple(t.select(d, 0) for t in part)
    order = sorted(range(part[0].dim()), key=part[0].stride, reverse=True)
    return tuple(t.permute(order) for t in part), repeat


def pieces(part: Part, start: int = 0, *, step: int = 1, size: int | None = None) -> Iterator[Part]:
    """Views of at most a block, or of every `step`-th element.

    Copies by index where there is no flat view.
    """
    size = size or BLOCK
    if all(t.is_contiguous() for t in part):
        yield from split(tuple(t.view(-1)[start::step] for t in part), size=size)
    elif step == 1:
        yield from split(part, size=size)
    else:
        shape, total = tuple(part[0].shape), part[0].numel()
        span = step * max(1, size // len(shape))  # an index array for each dimension
        for at in range(start, total, span):
            flat = np.arange(at, min(at + span, total), step)
            index = tuple(torch.from_numpy(each) for each in np.unravel_index(flat, shape))
            yield tuple(t[index] for t in part)


def split(part: Part, *, size: int | None = None) -> Iterator[Part]:
    """Views of at most `size` elements (default: a block), in the order of the elements."""
    most = size or BLOCK
    total, length = part[0].numel(), len(part[0]) if part[0].dim() else 1
    if 0 < total <= most:
        yield part
    elif total:
        rows = -(-length // -(-total // most))  # even pieces: 65537 is not 65536 and 1
        if part[0].dim() == 1:
            yield from zip(*(t.split(rows) for t in part), strict=True)
            return
        for at in range(0, length, rows):
            yield from split(tuple(t[at] if rows == 1 else t[at : at + rows] for t in part), size=most)


def blocks(part: Part, start: int = 0, *, step: int = 1) -> Iterator[Part | Array]:
    """The blocks for `load`; views of the memory itself where it holds floats."""
    lead = part[0]
    ready = lead.dtype in (torch.float32, torch.float64) and len(part) == step == 1 and lead.is_cpu
    size = BLOCK if _is_narrow(lead.dtype) else -(-BLOCK // 2)
    if ready and lead.is_contiguous() and not lead.is_neg() and not is_lazy_clone(lead):
        flat = as_numpy(lead.view(-1))  # of a lazy clone this would copy all of it
        yield from (flat[at : at + size] for at in range(0, flat.size, size))
    else:
        yield from pieces(part, start, step=step, size=size)


def _is_narrow(dtype: torch.dtype) -> bool:
    """Do its values fit into float32?"""
    return dtype.itemsize <= 2 or dtype in (torch.float32, torch.complex64, torch.complex32)


def blocks_in_any_order(part: Part) -> Iterator[Part | Array]:
    """The blocks for `load` where the order of the values does not matter: words of bfloat16, for one."""
    lead = part[0]
    is_plain = len(part) == 1 and lead.is_cpu and lead.is_contiguous() and not is_lazy_clone(lead)
    if lead.dtype is not torch.bfloat16 or not is_plain or lead.numel() < 2:
        yield from blocks(part)
        return
    flat = lead.view(-1)
    words = words_of(flat)
    if words is None:
        yield from blocks(part)
        return
    half = max(1, BLOCK // 2)
    yield from (words[at : at + half] for at in range(0, words.size, half))
    if flat.numel() % 2:
        yield (flat[-1:],)


def load(part: Part | Array, scratch: Scratch) -> Array:
    """A block as flat float32 or float64: magnitudes of complex numbers, real values of quantized ones."""
    if isinstance(part, np.ndarray):
        is_packed = part.dtype == np.uint32
        return unpack(part, scratch.room("loaded", 2 * part.size, F32)) if is_packed else part
    if not part[0].is_cpu:
        part = tuple(t.cpu() for t in part)
    lead, kind = part[0], F32 if _is_narrow(part[0].dtype) else F64
    if lead.is_complex():
        pairs = np.empty(tuple(lead.shape), np.complex64 if kind == F32 else np.complex128)
        torch.from_numpy(pairs).copy_(lead)
        return np.abs(pairs).reshape(-1)
    block, target = scratch.to_load(lead.numel(), kind)
    target = (target if lead.dim() == 1 else target.view(lead.shape)).copy_(lead)
    if len(part) > 1:
        target.sub_(part[1]).mul_(part[2])
    return block
