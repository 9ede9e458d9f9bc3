"""Anomalies: what you want to know about a tensor without asking."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from layerstep.layers.activations import Activation, measure_activation
from layerstep.tensors.finite import is_finite
from layerstep.tensors.format import number, place, share
from layerstep.tensors.masks import largest_unmasked
from layerstep.tensors.places import find_places
from layerstep.tensors.risk import EXPLODED, NEAR_OVERFLOW
from layerstep.tensors.shapes import dtype_name
from layerstep.tensors.spread import Spread, spread
from layerstep.tensors.summary import Stats, summarize

__all__ = ["Finding", "anomalies_in"]

LOOK_AT = 1 << 22
"""The most elements read of each tensor, because thousands of tensors can be in view."""
EXTREME = 1e4
"""Times the mean magnitude: a normal distribution of any practical size stays below 10."""


ISOLATED = 6.0
"""Times the 99th percentile: the largest of 10,000 normal values is at 1.7, of Laplace's at 2.5."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: what kind of thing, how bad, and the evidence in words."""

    what: str
    text: str
    is_bad: bool = False


def anomalies_in(
    tensor: torch.Tensor, module: nn.Module | None = None, *, is_parameter: bool = False
) -> list[Finding]:
    """What is odd about the values; `module` is the one that made them. Bounded in time, never raises."""
    stats = summarize(tensor, limit=LOOK_AT).stats
    if stats is None or not stats.count:
        return []
    if stats.sampled is not None and not is_finite(tensor):
        stats = summarize(tensor).stats or stats  # a sample may miss the one NaN
    is_own = module is not None or is_parameter
    found = [*_nonfinite(tensor, stats), *_magnitude(tensor, stats, is_own=is_own)]
    if is_parameter and tensor.dim() < 2:
        return found  # biases begin at 0, the gains of norms at 1
    if stats.std == 0 and stats.count > 1 and not stats.nan:
        same = "all zero" if stats.max == 0 else f"all {number(stats.max)}"
        what = "dead" if stats.max == 0 else "constant"
        return [*found, Finding(what, f"{stats.count:,} elements, {same}")]
    if not tensor.is_floating_point():
        return found
    if module is not None:
        found += _by_unit(measure_activation(tensor, module))
    values = spread(tensor, limit=LOOK_AT)
    return found + _outliers(stats, values) if values is not None else found


def _nonfinite(tensor: torch.Tensor, stats: Stats) -> list[Finding]:
    found = []
    looked = stats.sampled or stats.count
    places = find_places(tensor) if stats.nan or stats.posinf or stats.neginf else None
    if stats.nan and places is not None:
        first = f", first at {place(places.first_nan)}" if places.first_nan is not None else ""
        found.append(Finding("nan", f"{stats.nan:,} of {looked:,}{first}", is_bad=True))
    if stats.neginf and not stats.posinf and stats.min is not None and stats.min == stats.max == 0:
        found.append(Finding("mask", f"-inf in {share(stats.neginf, looked)}, else 0: an attention mask"))
    elif (stats.posinf or stats.neginf) and places is not None:
        first = f", first at {place(places.first_inf)}" if places.first_inf is not None else ""
        text = f"+inf {stats.posinf:,} -inf {stats.neginf:,} of {looked:,}{first}"
        found.append(Finding("inf", text, is_bad=True))
    return found


def _magnitude(tensor: torch.Tensor, stats: Stats, *, is_own: bool) -> list[Finding]:
    """`is_own`: the model has made it. Inputs may be of any size, as timestamps are."""
    if not tensor.is_floating_point() or stats.max_norm is None:
        return []
    largest = largest_unmasked(tensor, stats)
    if largest > EXPLODED and is_own:
        return [Finding("exploded", f"|x| up to {number(largest)}", is_bad=True)]
    end = torch.finfo(tensor.dtype).max
    if largest > NEAR_OVERFLOW * end:
        text = (
            f"|x| up to {number(largest)} is {largest / end:.0%} of what {dtype_name(tensor.dtype)} can hold"
        )
        return [Finding("extreme", text)]
    if stats.abs_mean and largest == stats.max_norm > EXTREME * stats.abs_mean:
        times = number(largest / stats.abs_mean)
        return [Finding("extreme", f"one of {number(largest)} is {times} times the mean magnitude")]
    return []


def _by_unit(one: Activation) -> list[Finding]:
    """Units (channels or features) of an output that never change, and saturated values."""
    found = []
    if one.dead and one.units:
        found.append(Finding("dead", f"{one.dead} of {one.units} units are zero at all {one.seen:,} places"))
    if one.constant and one.units and one.units > 1:
        found.append(Finding("constant", f"{one.constant} of {one.units} units never change"))
    if one.saturated is not None and one.saturated > 0.5:
        found.append(Finding("saturated", f"{one.saturated:.0%} of the values are at the ends of the range"))
    return found


def _outliers(stats: Stats, values: Spread) -> list[Finding]:
    looked = values.sampled or stats.count
    if not values.outliers or values.outliers > looked // 100 or values.is_one_sided:
        return []  # more than one in a hundred, or all on one side: that is a tail
    at = dict(values.percentiles)
    bulk = max(values.median - at[1.0], at[99.0] - values.median)
    if max(values.median - at[0.0], at[100.0] - values.median) < ISOLATED * bulk:
        return []  # the gradients of healthy models have heavy tails, and no gap in them
    bounds = f"[{number(values.outlier_low)}, {number(values.outlier_high)}]"
    return [Finding("outlier", f"{values.outliers:,} of {looked:,} outside {bounds}")]
