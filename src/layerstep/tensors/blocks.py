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
from layerstep.tensors.kinds import Part

__all__ = ["BLOCK", "F32", "F64", "Array", "Scratch", "blocks", "distinct", "load", "pieces", "split"]

Array = npt.NDArray[Any]

BLOCK = 1 << 18  # elements, 1 MiB of float32: 0.87 ns each, calls included; with 1 << 16 it is 1.10
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


class Scratch:
    """Memory that each block uses again: fresh pages would cost as much as the counting."""

    def __init__(self) -> None:
        self._slots: dict[str, Array] = {}

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


def load(part: Part | Array, scratch: Scratch) -> Array:
    """A block as flat float32 or float64: magnitudes of complex numbers, real values of quantized ones."""
    if isinstance(part, np.ndarray):
        return part
    part = tuple(t.cpu() for t in part)
    lead, kind = part[0], F32 if _is_narrow(part[0].dtype) else F64
    if lead.is_complex():
        pairs = np.empty(tuple(lead.shape), np.complex64 if kind == F32 else np.complex128)
        torch.from_numpy(pairs).copy_(lead)
        return np.abs(pairs).reshape(-1)
    block = scratch.room("loaded", lead.numel(), kind)
    target = torch.from_numpy(block if lead.dim() == 1 else block.reshape(tuple(lead.shape))).copy_(lead)
    if len(part) > 1:
        target.sub_(part[1]).mul_(part[2])
    return block
