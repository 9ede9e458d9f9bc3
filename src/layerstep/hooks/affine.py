"""A stand-in for the `forward` of a module: its result times a factor, plus a value.

A hook that comes after the compilation does nothing in compiled code. Another `forward` does: torch compiles
the model once more. The factor and the value are inputs of that graph, so others need no further compilation,
and without the stand-in the old graph runs again. Seen on torch 2.13.0.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from layerstep.hooks.temporary import replacing_forward

__all__ = ["AffineForward"]


class AffineForward:
    """Changes what a module returns: a tensor, or a tuple that begins with one."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._own = module.forward
        self._installed = contextlib.ExitStack()
        first = next(module.parameters(), None)
        device = first.device if first is not None else torch.device("cpu")
        self.factor = torch.ones((), device=device)
        self.added = torch.zeros((), device=device)
        self.acted = torch.zeros((), dtype=torch.long, device=device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = self._own(*args, **kwargs)
        if isinstance(out, tuple) and out and isinstance(out[0], Tensor):
            return (self._changed(out[0]), *out[1:])
        return self._changed(out) if isinstance(out, Tensor) else out

    def _changed(self, out: Tensor) -> Tensor:
        self.acted.add_(1)
        scaled = out * self.factor.to(out.dtype)
        zeros = torch.zeros((), dtype=out.dtype, device=out.device)  # of a NaN, too
        return torch.where(self.factor == 0, zeros, scaled) + self.added.to(out.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._module, "forward")  # a copy of the module has its own forward, unchanged

    @property
    def is_on(self) -> bool:
        return self._module.__dict__.get("forward") is self

    def turn(self, on: bool) -> None:
        """Put it on the module, or take it off."""
        self._installed.close()
        if on:
            self._installed.enter_context(replacing_forward(self._module, self))
