"""Numerical stability: what the values of a tensor say about the range and the digits of its dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from layerstep._torch import below_everything
from layerstep.errors import UserError
from layerstep.tensors.finite import is_finite
from layerstep.tensors.format import number, place, share
from layerstep.tensors.kinds import dense_values
from layerstep.tensors.masks import largest_unmasked
from layerstep.tensors.places import find_places
from layerstep.tensors.risk import EXPLODED
from layerstep.tensors.shapes import attempt, dtype_name
from layerstep.tensors.summary import Stats, summarize

__all__ = [
    "Kind",
    "Role",
    "Severity",
    "StabilityIssue",
    "Thresholds",
    "check_update",
    "check_values",
    "computes_in_f16",
    "worst_first",
]

Kind = Literal["nan", "inf", "overflow", "underflow", "precision", "cancellation"]
Severity = Literal["error", "warn", "info"]
Role = Literal["activation", "parameter", "gradient"]

LOOK_AT = 1 << 20
"""The most elements to read of each tensor, because there can be thousands of tensors."""
ROWS_UP_TO = 1 << 22
EXPLODED_ADVICE = "`activations **` shows the layer where it begins; a lower rate, clipping, a norm"
LEAST_F16 = 2.0**-25
"""Half of the least number of f16: a smaller value becomes 0."""


@dataclass(frozen=True, slots=True)
class StabilityIssue:
    """One finding: where, what, how bad, the numbers for it, what to do, and the op and line if known."""

    layer: str
    kind: Kind
    severity: Severity
    evidence: str
    advice: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits beyond which an issue is reported."""

    headroom: float = 2.0
    """powers of two between the largest magnitude and the largest of the dtype"""
    subnormal: float = 0.01
    """share of values closer to 0 than the normal numbers of the dtype"""
    vanishing: float = 0.5
    """share of the nonzero values that f16 would make 0"""
    digits: float = 0.5
    """share of the mantissa that a mean far from 0 takes up"""
    lost_updates: float = 0.5
    """share of the weights that an optimizer's step is too small to change"""
    error: float | None = None
    """relative error that one op may add; None: 1e-3, in half precision 16 units in the last place"""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Thresholds:
        known = [field.name for field in fields(cls)]
        for name, value in given.items():
            if name not in known:
                raise UserError(f"no threshold {name!r}", f"there are {', '.join(known)}")
            if not (isinstance(value, int | float) and value >= 0):
                raise UserError(f"{name} must be a number from 0, not {value!r}")
        return cls(**given)


_RANK: dict[Severity, int] = {"error": 0, "warn": 1, "info": 2}
_ORDER: tuple[Kind, ...] = ("nan", "inf", "cancellation", "overflow", "precision", "underflow")


def worst_first(issues: Iterable[StabilityIssue]) -> list[StabilityIssue]:
    return sorted(issues, key=lambda issue: (_RANK[issue.severity], _ORDER.index(issue.kind)))


def check_values(
    tensor: Tensor,
    name: str,
    *,
    role: Role = "activation",
    thresholds: Thresholds | None = None,
    in_f16: bool = False,
) -> list[StabilityIssue]:
    """Find what is wrong or at risk in the values of any tensor. Bounded in time; never raises.

    `in_f16`: the run computes in f16 too, so it matters what f16 would make of a wider tensor.
    """
    stats = summarize(tensor, limit=LOOK_AT).stats
    if stats is None or not stats.count or not tensor.is_floating_point():
        return []
    if stats.sampled is not None and not is_finite(tensor):
        stats = summarize(tensor).stats or stats  # a sample may miss the one NaN
    limits = thresholds or Thresholds()
    return [
        *_nonfinite(tensor, stats, name, role),
        *_overflow(tensor, stats, name, role, limits, in_f16=in_f16),
        *_underflow(tensor, stats, name, role, limits, in_f16=in_f16),
        *_digits(tensor, stats, name, role, limits),
    ]


def computes_in_f16(tensors: Iterable[Tensor]) -> bool:
    """Does a run with these tensors compute in f16: by their dtype, or by autocast?"""
    autocast = any(
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.float16
        for kind in ("cpu", "cuda")
    )
    return autocast or any(tensor.dtype is torch.float16 for tensor in tensors)


def _nonfinite(tensor: Tensor, stats: Stats, name: str, role: Role) -> Iterator[StabilityIssue]:
    if not (stats.nan or stats.posinf or stats.neginf):
        return
    looked, places = stats.sampled or stats.count, find_places(tensor)
    where = "`stability **` looks for the op" if role == "activation" else ""
    if stats.nan:
        first = f", first at {place(places.first_nan)}" if places and places.first_nan is not None else ""
        yield StabilityIssue(name, "nan", "error", f"{stats.nan:,} of {looked:,}{first}", where)
    if stats.posinf or stats.neginf:
        is_mask = stats.neginf and not stats.posinf and not stats.nan  # -inf is how attention is masked
        if is_mask and stats.min is not None and stats.min == stats.max == 0:
            return
        first = f", first at {place(places.first_inf)}" if places and places.first_inf is not None else ""
        text = f"+inf {stats.posinf:,} -inf {stats.neginf:,} of {looked:,}{first}"
        yield StabilityIssue(name, "inf", "info" if is_mask else "error", text, "" if is_mask else where)


def _overflow(
    tensor: Tensor, stats: Stats, name: str, role: Role, limits: Thresholds, *, in_f16: bool
) -> Iterator[StabilityIssue]:
    if stats.max is None or stats.min is None:
        return
    dtype, most = tensor.dtype, torch.finfo(tensor.dtype).max
    is_masked = stats.min <= -0.99 * most  # the least number of a dtype is a mask
    largest = max(stats.max, 0.0) if is_masked else largest_unmasked(tensor, stats)
    if largest <= 0:
        return
    headroom = math.log2(most / largest)
    size = f"|x| up to {number(largest)}"
    if headroom < limits.headroom:
        text = f"{size}: {headroom:.1f} powers of two below the end of {dtype_name(dtype)}"
        yield StabilityIssue(name, "overflow", "warn", text, "bf16 or f32 here, or scale down")
    elif largest > EXPLODED and role != "gradient":
        yield StabilityIssue(name, "overflow", "warn", f"{size}: it has exploded", EXPLODED_ADVICE)
    elif dtype is torch.float16 and role == "activation":
        squares = _largest_row(tensor)
        if squares > most:
            text = f"the squares of a row add up to {number(squares)}, f16 ends at 65504"
            yield StabilityIssue(name, "overflow", "info", text, "norms in f32")
    elif in_f16 and role == "activation" and largest > torch.finfo(torch.float16).max:
        text = f"{size}: would overflow in f16"
        yield StabilityIssue(name, "overflow", "info", text, "bf16 rather than f16")


def _largest_row(tensor: Tensor) -> float:
    """The largest sum of squares over the last dimension, as a norm takes it; 0 if it is too large."""

    def read() -> float:
        with below_everything():
            values = dense_values(tensor)
            if values is None or not 0 < values.numel() <= ROWS_UP_TO or not values.dim():
                return 0.0
            return float(values.float().square().sum(-1).max())

    return float(attempt(read, 0.0))


def _underflow(
    tensor: Tensor, stats: Stats, name: str, role: Role, limits: Thresholds, *, in_f16: bool
) -> Iterator[StabilityIssue]:
    if role == "parameter" and tensor.dim() < 2:
        return
    looked = stats.sampled or stats.count
    few, kind = stats.subnormal or 0, dtype_name(tensor.dtype)
    if few > limits.subnormal * looked:
        text = f"{share(few, looked)} of the values are subnormal in {kind}, with fewer digits"
        advice = "loss scaling" if role == "gradient" else "scale up"
        yield StabilityIssue(name, "underflow", "warn", text, advice)
        return
    if not in_f16 or role == "parameter" or tensor.dtype is torch.float16:
        return
    if tensor.dim() < 2:  # the gradient of a bias before a norm, or of a key bias, is 0 apart from rounding
        return
    if not stats.max_norm or stats.abs_mean is None or stats.abs_mean > 1e-4:
        return  # few of such a tensor can be that small
    lost, there = attempt(lambda: _vanishing(tensor), (0, 0))
    if there and lost > limits.vanishing * there:
        text = (
            f"{share(lost, there)} of the nonzero values would be 0 in f16; mean |x| {number(stats.abs_mean)}"
        )
        yield StabilityIssue(name, "underflow", "info", text, "bf16, or loss scaling in f16")


def _vanishing(tensor: Tensor) -> tuple[int, int]:
    """How many nonzero values f16 would make 0, and how many nonzero values there are, in a sample."""
    with below_everything():
        values = dense_values(tensor)
        if values is None:
            return 0, 0
        sizes = _sample(values).abs()
        there = int((sizes > 0).sum())
        return there - int((sizes > LEAST_F16).sum()), there


def _sample(values: Tensor) -> Tensor:
    """A large tensor's every n-th element."""
    flat = values.reshape(-1)
    return flat[:: max(1, -(-flat.numel() // LOOK_AT))]


def _digits(
    tensor: Tensor, stats: Stats, name: str, role: Role, limits: Thresholds
) -> Iterator[StabilityIssue]:
    """A large mean with a small spread: the values differ only in their last digits."""
    if not stats.mean or not stats.std or stats.count < 8:
        return
    if role == "parameter" and tensor.dim() < 2:  # the gains of norms begin at 1
        return
    bits, there = math.log2(abs(stats.mean) / stats.std), mantissa(tensor.dtype)
    if bits >= limits.digits * there:
        text = f"{number(stats.mean)} ± {number(stats.std)}: {bits:.0f} of {there} bits are spent on the mean"
        yield StabilityIssue(name, "precision", "warn", text, "subtract the mean earlier")


def mantissa(dtype: torch.dtype) -> int:
    """The bits of precision: 24 of f32, 11 of f16, 8 of bf16."""
    return 1 - int(math.log2(torch.finfo(dtype).eps))


# --- is a step of the optimizer too small for the dtype of the weights? ---


def check_update(
    parameter: Tensor, name: str, optimizer: torch.optim.Optimizer, *, thresholds: Thresholds | None = None
) -> list[StabilityIssue]:
    """Are most updates smaller than half a unit in the last place of their weights?"""
    limits = thresholds or Thresholds()
    lost, there = attempt(lambda: _lost_updates(parameter, optimizer), (0, 0))
    if not there or lost <= limits.lost_updates * there:
        return []
    kind, advice = dtype_name(parameter.dtype), "keep the weights in f32, or round stochastically"
    text = f"{share(lost, there)} of the updates are lost: below half the last digit of a {kind} weight"
    return [StabilityIssue(name, "precision", "warn", text, advice)]


def _lost_updates(parameter: Tensor, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    groups = (group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
    group = next(groups, None)
    if group is None or parameter.grad is None:
        return 0, 0
    with below_everything():
        step = _update(optimizer, group, parameter, parameter.grad)
        weights = dense_values(parameter)
        if step is None or weights is None:
            return 0, 0
        sizes, weights = _sample(step).abs(), _sample(weights).to(torch.float64)
        _, exponent = torch.frexp(weights)
        half = torch.ldexp(torch.full_like(weights, torch.finfo(parameter.dtype).eps / 4), exponent)
        moved = sizes > 0
        return int((moved & (sizes < half) & (weights != 0)).sum()), int(moved.sum())


def _update(optimizer: Any, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> Tensor | None:
    """What the next step would add, without weight decay; None for an unknown optimizer."""
    state, rate = optimizer.state.get(parameter, {}), float(group["lr"])
    if "exp_avg" in state and "exp_avg_sq" in state:
        first, second = (1 - beta ** max(float(state.get("step", 1)), 1.0) for beta in group["betas"])
        average, square = state["exp_avg"].to(torch.float64), state["exp_avg_sq"].to(torch.float64)
        step: Tensor = rate * (average / first) / ((square / second).sqrt() + group["eps"])
        return step
    if isinstance(optimizer, torch.optim.Adam):  # before its first step: as large as the rate
        return rate * gradient.to(torch.float64).sign()
    if isinstance(optimizer, torch.optim.SGD):
        momentum = state.get("momentum_buffer")
        return rate * (gradient if momentum is None else momentum).to(torch.float64)
    return None
