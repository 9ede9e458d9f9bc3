"""Which part of the inputs of a call is one sample, and a checksum of each.

Most programs give a row to each sample. Graphs of a batch are laid one behind the other, with a tensor that
tells which graph each node belongs to; bags of an `EmbeddingBag` have offsets; a recurrent model may have the
time first. There a row is a node, a token or a moment, and says nothing about the sample.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerstep.doctor.measuring import is_readable, rows_of

__all__ = ["ROWS", "Divided", "divided"]

Named = Sequence[tuple[str, Tensor]]

ROWS = 64
LARGEST = 1 << 22
"""Elements of an input that is cut into samples."""
_WHOLE = (torch.int64, torch.int32)
_BESIDE = ("mask", "label", "target")
"""Names of arguments that say nothing about which sample it is."""


@dataclass(frozen=True, slots=True)
class Divided:
    """The samples of a call."""

    count: int
    rows: tuple[int, ...] = ()
    """A checksum of each of the first samples; nothing where they were not looked at."""
    values: int = 0
    """Numbers that a sample has at least."""


def divided(named: Named, *, time_first: bool = False, most: int = ROWS) -> Divided:
    """The samples of a call, with their checksums.

    Over all inputs that have a part for each sample and are not far smaller than the largest of them: the
    time of a diffusion is drawn anew for each picture.
    """
    bounds = _bounds(named)
    usable = [(name, t) for name, t in named if t.ndim and is_readable(t) and not t.is_complex()]
    if not usable:
        return Divided(next((len(t) for _, t in named if t.ndim), 1))
    if bounds is not None:
        return _of_groups(usable, bounds, most)
    turned = [(name, _turned(t, time_first)) for name, t in usable]
    count = len(turned[0][1])
    parts = _chosen([(name, t) for name, t in turned if len(t) == count], lambda t: t.numel() // len(t))
    tables = [rows_of(t, most=most) for t in parts]
    same = [each for each in tables if len(each) == len(tables[0])]
    rows = tuple(hash(row) for row in zip(*same, strict=True)) if len(same) > 1 else same[0]
    return Divided(count, rows, max(t.numel() // len(t) for t in parts))


def _chosen(parts: list[tuple[str, Tensor]], size: Callable[[Tensor], int]) -> list[Tensor]:
    telling = [
        t for name, t in parts if t.dtype is not torch.bool and not any(word in name for word in _BESIDE)
    ]
    telling = telling or [t for _, t in parts]
    largest = max(map(size, telling))
    return [t for t in telling if 2 * size(t) >= largest]


def _turned(tensor: Tensor, time_first: bool) -> Tensor:
    return tensor.transpose(0, 1) if _first(tensor, time_first) else tensor


def _first(tensor: Tensor, time_first: bool) -> int:
    return 1 if time_first and tensor.ndim >= 2 else 0


def _of_groups(usable: list[tuple[str, Tensor]], bounds: list[int], most: int) -> Divided:
    """Samples that lie one behind the other, from one bound to the next."""
    parts = _chosen([(n, t) for n, t in usable if len(t) == bounds[-1]], lambda t: t.numel() // len(t))
    cut = bounds[: most + 1]
    checks = []
    for tensor in parts:
        if tensor.numel() > LARGEST:
            return Divided(len(bounds) - 1)
        table = tensor.detach()[: cut[-1]].cpu().contiguous().clone()
        raw = table.to(torch.uint8) if table.dtype is torch.bool else table.view(torch.uint8)
        bytes_ = raw.numpy().tobytes()  # of our own copy
        wide = len(bytes_) // max(cut[-1], 1)
        checks.append([zlib.crc32(bytes_[a * wide : b * wide]) for a, b in itertools.pairwise(cut)])
    widths = [tensor.numel() // len(tensor) for tensor in parts]
    shortest = min(b - a for a, b in itertools.pairwise(bounds))
    return Divided(len(bounds) - 1, tuple(map(hash, zip(*checks, strict=True))), sum(widths) * shortest)


def _bounds(named: Named) -> list[int] | None:
    """Where each sample begins and the last one ends, if a tensor of whole numbers tells; else None."""
    for _, told in named:
        if told.ndim != 1 or told.dtype not in _WHOLE or not 2 <= len(told) <= LARGEST:
            continue
        if not is_readable(told) or int(told[0]) != 0:
            continue
        rises = told.detach().diff()
        if int(rises.min()) < 0 or not int(told[-1]):
            continue
        lengths = [len(t) for _, t in named if t is not told and t.ndim]
        if len(told) in lengths and int(rises.max()) == 1 and 2 * (int(told[-1]) + 1) <= len(told):
            starts = (rises.nonzero().flatten() + 1).tolist()
            return [0, *starts, len(told)]
        flat = [len(t) for _, t in named if t.ndim == 1 and len(t) > len(told)]
        if flat and int(told[-1]) <= flat[0] and int(rises.max()) > 1:
            return [*told.tolist(), flat[0]]
    return None
