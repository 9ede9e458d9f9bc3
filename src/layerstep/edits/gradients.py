"""What the gradient of a replaced value is.

An expression keeps its own graph: `out * 0` has the gradient of that. A constant has none, so three ways are
offered. `stop`: the old value gets a gradient of zeros, so that every parameter still gets one and the hooks
of DistributedDataParallel fire. `through`: it gets the gradient as if nothing was replaced. `cut`: none.
`old + (new - old).detach()` would do for the second, but its value is not exact: off by 1e-4 where the old
one is near 1000, and NaN where it is infinite.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["Gradient", "with_gradient"]

Gradient = Literal["stop", "through", "cut"]


class _Replaced(torch.autograd.Function):
    """The value of `new`; the gradient goes to `old`, as it is or as zeros."""

    generate_vmap_rule = True

    @staticmethod
    def forward(old: Tensor, new: Tensor, is_through: bool) -> Tensor:
        return new.detach().clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        old, _, ctx.is_through = inputs
        ctx.old = old.shape, old.dtype, old.device

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (shape, dtype, device) = grads, ctx.old
        if ctx.is_through and grad.shape == shape:
            return grad.to(dtype), None, None
        return torch.zeros(shape, dtype=dtype, device=device), None, None


def with_gradient(old: Tensor, new: Tensor, gradient: Gradient) -> Tensor:
    """`new` in place of `old`, with the gradient that is asked for."""
    if gradient == "cut":
        return new.detach()
    needs = torch.is_grad_enabled() and old.requires_grad
    if gradient == "stop" and (new.requires_grad or not needs):
        return new
    if not needs:
        return new.detach()
    replaced = _Replaced.apply(old, new, gradient == "through")  # type: ignore[no-untyped-call]
    assert isinstance(replaced, Tensor)
    return replaced
