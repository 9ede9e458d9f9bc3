"""Risks: what a tensor's figures prove about the range of its dtype, in words."""

from __future__ import annotations

import torch

from layerstep.tensors.counting import Stats
from layerstep.tensors.shapes import dtype_name

__all__ = ["EXPLODED", "NEAR_OVERFLOW", "risks"]

NEAR_OVERFLOW = 0.5  # of the dtype's largest number: one doubling away
MANY_SUBNORMAL = 0.01
EXPLODED = 1e6
"""Larger than any activation or weight of a working model; those of large language models reach 1e4."""


def risks(dtype: torch.dtype, stats: Stats, *, largest: float | None = None) -> list[str]:
    """The risks as sentences; none if the figures prove nothing wrong.

    `largest` is the largest magnitude without a mask, if that differs from all values.
    """
    if stats.max_norm is None:
        return []
    most = stats.max_norm if largest is None else largest
    found = [_sameness(stats)]
    if dtype.is_floating_point or dtype.is_complex:
        found += [_overflow(dtype, most), _underflow(dtype, stats), _narrower(dtype, most)]
    return [sentence for sentence in found if sentence]


def _finite(stats: Stats) -> int:
    return (stats.sampled or stats.count) - stats.nan - stats.posinf - stats.neginf


def _sameness(stats: Stats) -> str:
    finite = _finite(stats)
    if finite < 2 or stats.sampled is not None:
        return ""
    if stats.max_norm == 0:
        return "all values are zero" if finite == stats.count else "all finite values are zero"
    if stats.min == stats.max and stats.zero == 0:
        return f"all {'' if finite == stats.count else 'finite '}values are {stats.min:.6g}"
    return ""


def _overflow(dtype: torch.dtype, most: float) -> str:
    limit = torch.finfo(dtype).max
    if most <= NEAR_OVERFLOW * limit:
        return ""
    share = f"{most / limit:.0%} of what {dtype_name(dtype)} can hold"
    return f"near overflow: the largest magnitude {most:.4g} is {share}"


def _underflow(dtype: torch.dtype, stats: Stats) -> str:
    share = (stats.subnormal or 0) / max(1, _finite(stats))
    if share <= MANY_SUBNORMAL:
        return ""
    return f"underflow: {share:.0%} of the values are subnormal in {dtype_name(dtype)}, with fewer digits"


def _narrower(dtype: torch.dtype, most: float) -> str:
    """What a cast to f16 would do, from a dtype with a wider range."""
    half = torch.finfo(torch.float16)
    if torch.finfo(dtype).max <= half.max or not most:
        return ""
    if most > EXPLODED:
        return f"very large: |x| up to {most:.4g}; an activation or a weight of this size has exploded"
    if most >= half.max + 16:  # below, it is rounded down to 65504
        return f"would overflow in f16: the largest magnitude is {most:.4g}, f16 ends at 65504"
    if most <= half.smallest_normal * half.eps / 2:
        return f"would vanish in f16: the largest magnitude is {most:.4g}"
    return ""
