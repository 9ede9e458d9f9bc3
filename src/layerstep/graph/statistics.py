"""The figures that a graph can be coloured by, one for each call of a module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from layerstep._torch.guards import functions_off
from layerstep._torch.tensors import size_of
from layerstep.tensors.format import human_bytes, number, share
from layerstep.tensors.observing import observing

__all__ = ["STATISTICS", "Statistic", "in_words"]

Statistic = Callable[[nn.Module, list[Tensor], float], float | None]
"""Of a module, what this call of it returned, and how many seconds that took."""


def _none(module: nn.Module, made: list[Tensor], seconds: float) -> float | None:
    return None


def _grad(module: nn.Module, made: list[Tensor], seconds: float) -> float | None:
    """The norm of the gradients of its parameters."""
    with observing(), contextlib.suppress(Exception):  # a kind of tensor that has no norm
        grads = [each.grad for each in module.parameters() if each.grad is not None]
        if grads:
            norms = torch.stack([each.detach().float().norm().cpu() for each in grads])
            return _finite(float(norms.norm()))
    return None


def _time(module: nn.Module, made: list[Tensor], seconds: float) -> float | None:
    return seconds


def _bytes(module: nn.Module, made: list[Tensor], seconds: float) -> float | None:
    return float(sum(map(size_of, made)))


def _dead(module: nn.Module, made: list[Tensor], seconds: float) -> float | None:
    """The share of units that are zero throughout: channels of pictures, else the last dimension."""
    floats = [each for each in made if each.is_floating_point() and each.dim() >= 2 and each.numel()]
    if not floats:
        return None
    with functions_off(), observing(), contextlib.suppress(Exception):  # sparse, nested
        axis = 1 if floats[0].dim() in (4, 5) else floats[0].dim() - 1
        others = [at for at in range(floats[0].dim()) if at != axis]
        return float((floats[0] == 0).all(dim=others[0] if len(others) == 1 else others).float().mean())
    return None


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") and value == value else None


STATISTICS: dict[str, Statistic] = {"": _none, "grad": _grad, "time": _time, "bytes": _bytes, "dead": _dead}


def in_words(by: str, value: float | None) -> str:
    """A figure as people read it."""
    if value is None:
        return ""
    if by == "bytes":
        return human_bytes(int(value))
    if by == "time":
        return f"{value * 1e6:,.0f} µs"
    return share(round(value * 1_000_000), 1_000_000) if by == "dead" else number(value)
