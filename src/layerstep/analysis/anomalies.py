"""Anomalies: what in a tensor a person would want to be told without asking."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from layerstep.analysis.activations import Activation, measure_activation
from layerstep.analysis.places import find_places
from layerstep.analysis.risk import risks
from layerstep.analysis.spread import Spread, spread
from layerstep.analysis.tensor import Stats, seems_finite, summarize
from layerstep.analysis.words import number, place, share

__all__ = ["Finding", "anomalies_in"]

LOOK_AT = 1 << 22
"""Elements of each tensor: what is in view can be thousands of them."""
EXTREME = 1e4
"""Times the mean magnitude: a normal distribution of any size a computer holds stays below 10."""


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
    if stats.sampled is not None and not seems_finite(tensor):
        stats = summarize(tensor).stats or stats  # a sample may miss the one NaN
    found = [*_nonfinite(tensor, stats), *_magnitude(tensor, stats)]
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


def _magnitude(tensor: torch.Tensor, stats: Stats) -> list[Finding]:
    if not tensor.is_floating_point():
        return []
    found = [Finding("extreme", text) for text in risks(tensor.dtype, stats) if "overflow" in text]
    if stats.abs_mean and stats.max_norm is not None and stats.max_norm > EXTREME * stats.abs_mean:
        times = number(stats.max_norm / stats.abs_mean)
        text = f"one of {number(stats.max_norm)} is {times} times the mean magnitude"
        found.append(Finding("extreme", text))
    return found


def _by_unit(one: Activation) -> list[Finding]:
    """Units (channels or features) of an output that never do anything, and squashed values."""
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
    if not values.outliers or values.outliers > looked // 100:
        return []  # more than one in a hundred is a heavy tail, not an outlier
    bounds = f"[{number(values.outlier_low)}, {number(values.outlier_high)}]"
    return [Finding("outlier", f"{values.outliers:,} of {looked:,} outside of {bounds}")]
