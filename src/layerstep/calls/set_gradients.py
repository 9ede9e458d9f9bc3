"""Gradients of inputs that were set at a stop, on their way to the module that made the input.

When the backward pass has gone through a module, the gradient of its input waits at the autograd node of that
input, together with what other branches send there. So the difference is added where the sum arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Key", "SetGradients", "is_leaf"]

Key = tuple[str, int, int]
"""An input as an edge of the graph: a node by its number and output, or a leaf by its id."""


class Call(Protocol):
    """A call of a module that the backward pass goes through."""

    inputs: tuple[Key | None, ...]

    def stack(self) -> Iterable[Any]:
        """The call and those around it."""


def is_leaf(key: Key | None) -> bool:
    """A leaf takes its gradient at once: nothing waits there."""
    return key is not None and key[0] == "leaf"


@dataclass(slots=True, eq=False)
class _Set:
    call: Call
    key: Key
    before: Tensor
    after: Tensor
    has_arrived: bool = False

    def instead_of(self, gradient: Tensor) -> Tensor:
        """The value itself where no other branch adds to it."""
        if torch.equal(gradient, self.before):
            return self.after
        return gradient + (self.after - self.before)


class SetGradients:
    """Those of the running backward pass."""

    def __init__(self) -> None:
        self._set: list[_Set] = []

    def keep(self, call: Call, before: Sequence[Tensor | None], after: Sequence[Tensor | None]) -> list[Key]:
        """What was set at a call that is done; the edges at which it is to act."""
        keys = []
        for key, old, new in zip(call.inputs, before, after, strict=True):
            if key is not None and old is not None and new is not None and new is not old:
                self._set.append(_Set(call, key, old, new))
                keys.append(key)
        return keys

    def arriving(self, key: Key, gradient: Tensor) -> Tensor:
        """The gradient that arrives at an edge, with what was set for it."""
        for each in self._set:
            if each.key == key and not each.has_arrived:
                gradient, each.has_arrived = each.instead_of(gradient), True
        return gradient

    def leaving(self, call: Call, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What goes out of a call, with what was set at the calls that it made."""
        found = list(gradients)
        for each in self._set:
            if each.call is not call and any(outer is call for outer in each.call.stack()):
                for index, key in enumerate(call.inputs):
                    value = found[index]
                    if key == each.key and value is not None:
                        found[index] = each.instead_of(value)
        return found

    def clear(self) -> None:
        self._set.clear()
