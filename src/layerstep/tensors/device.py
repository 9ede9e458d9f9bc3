"""Counting on an accelerator: reductions on the device, and one transfer of a small table."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from layerstep.tensors.rows import BlockFigures

__all__ = ["PIECE", "count_on_device"]

PIECE = 1 << 20  # elements: 8 MiB for each of some float64 copies; even float32 counts them exactly


def count_on_device(pieces: Iterable[Tensor], tiny: float) -> list[BlockFigures]:
    """A row for each piece of at most `PIECE` elements, on whatever device they are."""
    figures = [_figures(piece, tiny) for piece in pieces]
    if not figures:
        return []
    return [_row(each) for each in torch.stack(figures).cpu().to(torch.float64).tolist()]


def _figures(piece: Tensor, tiny: float) -> Tensor:
    """The counts, the extremes, and the mean in two parts, in the widest floats that the device has."""
    wide = torch.float64 if _has_float64(piece.device) else torch.float32
    x = (piece.abs() if piece.is_complex() else piece).reshape(-1).to(wide)
    good = x.isfinite()
    size, least, most = x.abs(), _where(good, x, math.inf).min(), _where(good, x, -math.inf).max()
    peak = torch.maximum(-least, most)
    low, high = (1e-130, 1e130) if wide == torch.float64 else (1e-9, 1e15)
    unit = torch.where((peak > low) & (peak < high) | (peak <= 0), torch.ones_like(peak), peak)
    n = good.sum().to(wide)
    scaled = _where(good, x / unit, 0.0)
    mean = scaled.sum() / n
    rest = _where(good, scaled - mean, 0.0)  # about the mean: otherwise 1000 ± 1e-3 is lost in float32
    off = rest.sum() / n
    std = ((rest * rest).sum() / n - off * off).clamp(min=0).sqrt()
    counts = (x.isnan(), x == math.inf, x == -math.inf, x == 0, good & (x < 0), (size < tiny) & (x != 0))
    tally = [each.sum().to(wide) for each in counts]
    return torch.stack([*tally, n, least, most, unit, mean, off, std, scaled.abs().sum() / n])


def _where(test: Tensor, values: Tensor, other: float) -> Tensor:
    return torch.where(test, values, torch.full_like(values, other))


def _row(figures: list[float]) -> BlockFigures:
    nan, up, down, zero, negative, subnormal, n, lo, hi, unit, mean, off, std, magnitude = figures
    counts = (n + nan + up + down, nan, up, down, zero, negative, subnormal)
    if not n:
        return BlockFigures(*counts, math.inf, -math.inf, 0, 0, 0)
    return BlockFigures(*counts, lo, hi, (mean + off) * unit, std * unit, magnitude * unit)


@functools.cache
def _has_float64(device: torch.device) -> bool:
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):  # mps, some xpu
        return False
    return True
