"""The size of gradients: mean |g|, max |g| and norm of many at once, with one transfer from each device."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from layerstep._torch import below_everything, foreach_norm
from layerstep.tensors.blocks import Scratch, blocks, load
from layerstep.tensors.counting import mean_of, mean_square_of
from layerstep.tensors.summary import summarize

__all__ = ["Size", "combined", "gradient_of", "is_plain", "measure", "norms"]


class Size(NamedTuple):
    """How large a gradient is. NaN if an element is NaN, or if it cannot be read."""

    mean: float
    most: float
    norm: float


SMALL, MANY = 1 << 12, 64
"""Elements of a small gradient, and how many of those are copied side by side: 2 MB of float64."""

_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
"""The dtype in which half precision is summed."""


def measure(tensors: Sequence[torch.Tensor]) -> list[Size]:
    """The sizes of these tensors. Waits for each device once; never raises for an odd kind."""
    found: dict[int, Size] = {}
    groups: defaultdict[object, list[int]] = defaultdict(list)
    with below_everything():
        for index, tensor in enumerate(tensors):
            if is_plain(tensor):
                groups[tensor.device, tensor.dtype].append(index)
            else:
                found[index] = _odd(tensor)
        scratch = Scratch()
        for group in groups.values():
            plain = [tensors[index].detach() for index in group]
            if plain[0].device.type != "cpu":
                found.update(zip(group, _together(plain), strict=True))
                continue
            small = [(i, t) for i, t in zip(group, plain, strict=True) if t.numel() <= SMALL]
            for at in range(0, len(small), MANY):
                some = small[at : at + MANY]
                sizes = _side_by_side([tensor for _, tensor in some])
                found.update(zip((index for index, _ in some), sizes, strict=True))
            large = ((i, t) for i, t in zip(group, plain, strict=True) if t.numel() > SMALL)
            found.update((index, _counted(tensor, scratch)) for index, tensor in large)
    return [found[index] for index in range(len(tensors))]


def norms(tensors: Sequence[torch.Tensor]) -> list[float]:
    """The norms alone."""
    return [size.norm for size in measure(tensors)]


def is_plain(tensor: torch.Tensor) -> bool:
    """Is it a float tensor in memory that kernels can read? Asks without a synchronisation."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    if tensor.dtype not in _WIDER or tensor.is_meta or tensor.is_nested or not tensor.numel():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return tensor.untyped_storage().nbytes() >= tensor.element_size()  # a freed one has none


def _counted(tensor: torch.Tensor, scratch: Scratch) -> Size:
    """Measure in one pass over blocks.

    On a CPU, torch's sum of magnitudes alone takes 1 ns an element, this 0.4.
    """
    total = square = most = 0.0
    with np.errstate(all="ignore"):
        for block in blocks((tensor,)):
            values = load(block, scratch)
            sizes = np.abs(values, out=scratch.room("sizes", values.size, values.dtype))
            peak = float(np.maximum.reduce(sizes))  # which carries NaN
            most = peak if math.isnan(peak) or peak > most else most
            total += mean_of(sizes) * sizes.size
            square += mean_square_of(sizes) * sizes.size
    norm = math.sqrt(square) if square >= 0 else math.nan
    return Size(total / tensor.numel(), most, norm) if _adds_up(most, norm) else _odd(tensor)


def _side_by_side(tensors: list[torch.Tensor]) -> list[Size]:
    """Small ones on a CPU, in one copy: one by one, each would take 50 µs before it is looked at."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).to(_WIDER[tensors[0].dtype]).numpy()
    counts = [tensor.numel() for tensor in tensors]
    starts = np.cumsum([0, *counts[:-1]])
    with np.errstate(all="ignore"):
        np.abs(flat, out=flat)
        peaks = np.maximum.reduceat(flat, starts).tolist()
        totals = np.add.reduceat(flat, starts, dtype=np.float64).tolist()
        norms = np.sqrt(np.add.reduceat(np.square(flat, dtype=np.float64), starts)).tolist()
    rows = zip(tensors, counts, peaks, totals, norms, strict=True)
    return [
        Size(total / count, peak, norm) if _adds_up(peak, norm) else _odd(tensor)
        for tensor, count, peak, total, norm in rows
    ]


def _together(tensors: list[torch.Tensor]) -> list[Size]:
    """Measure by kernels over all of them, and one transfer."""
    wider = _WIDER[tensors[0].dtype]
    sums = foreach_norm(tensors, 1, dtype=wider)
    roots = foreach_norm(tensors, 2, dtype=wider)
    ends = [end for tensor in tensors for end in tensor.aminmax()]  # a third of the time of the norm for inf
    values = torch.cat([torch.stack([*sums, *roots]), torch.stack(ends).to(wider)]).tolist()
    count = len(tensors)
    lows, highs = values[2 * count :: 2], values[2 * count + 1 :: 2]
    rows = zip(tensors, values[:count], values[count : 2 * count], map(_larger, lows, highs), strict=True)
    return [
        Size(total / tensor.numel(), peak, norm) if _adds_up(peak, norm) else _odd(tensor)
        for tensor, total, norm, peak in rows
    ]


def _larger(low: float, high: float) -> float:
    return math.nan if math.isnan(low) else max(-low, high)


def _adds_up(peak: float, norm: float) -> bool:
    """Did the squares neither overflow nor vanish?

    In single precision 1e20 squared is inf, 1e-30 squared is 0.
    """
    return not math.isfinite(peak) or (math.isfinite(norm) and norm >= peak * 0.99)


def _odd(tensor: torch.Tensor) -> Size:
    """Measure as the tensor line does, for any kind of tensor."""
    stats = summarize(tensor).stats
    if stats is None or stats.nan:
        return Size(math.nan, math.nan, math.nan)
    if stats.posinf or stats.neginf:
        return Size(math.inf, math.inf, math.inf)
    if not stats.count:
        return Size(0.0, 0.0, 0.0)
    return Size((stats.l1 or 0.0) / stats.count, stats.max_norm or 0.0, stats.l2 or 0.0)


def combined(sizes: Sequence[Size], counts: Sequence[int]) -> Size:
    """The size of several gradients as if they were one; `counts` are their numbers of elements."""
    total = sum(counts)
    if not total:
        return Size(0.0, 0.0, 0.0)
    mean = sum(size.mean * (count / total) for size, count in zip(sizes, counts, strict=True))
    worst = [size.most for size in sizes]
    most = math.nan if any(map(math.isnan, worst)) else max(worst)
    return Size(mean, most, math.hypot(*(size.norm for size in sizes)))


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its gradient, without torch's warning for a tensor that keeps none."""
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None
