"""Put back the parameters that a forward writes: the weights of a momentum encoder, a clamp, `self.double()`.

Most forwards write none. Only the values tell, because a write through `.data` is not counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from layerstep._torch import set_version
from layerstep._torch.tensors import size_of, version_of
from layerstep.tensors.clones import clone_of, has_same_bits, write_back
from layerstep.tensors.observing import observing

__all__ = ["WeightState", "weights_and_gradients", "weights_kept"]

MOST_BYTES = 1 << 30
"""Of larger modules only what is not a value is put back."""


@contextlib.contextmanager
def weights_kept(module: nn.Module) -> Iterator[None]:
    """Undo at the end what a forward does to parameters and their gradients."""
    with observing():
        kept = _states_of(module)
    try:
        yield
    finally:
        with observing():
            for state in kept:
                state.restore()


def weights_and_gradients(module: nn.Module) -> list[Tensor]:
    """What a forward may write and hardly ever does."""
    weights = [weight for weight in module.parameters() if not weight.is_meta and not is_lazy(weight)]
    return weights + [weight.grad for weight in weights if weight.is_leaf and weight.grad is not None]


def _states_of(module: nn.Module) -> list[WeightState]:
    tensors = weights_and_gradients(module)
    with_values = sum(map(size_of, tensors)) <= MOST_BYTES
    kept = []
    for tensor in tensors:
        with contextlib.suppress(Exception):  # freed, or of a kind that cannot be copied
            kept.append(WeightState.of(tensor, with_values))
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class WeightState:
    """A parameter, or the gradient of one, as it is now."""

    tensor: Tensor
    memory: Tensor
    """The same memory in another tensor, which stays what it is if the parameter gets other memory."""
    values: Tensor | None
    version: int
    grad: Tensor | None
    needs_grad: bool

    @classmethod
    def of(cls, tensor: Tensor, with_values: bool) -> WeightState:
        """What a forward could change about it."""
        return cls(
            tensor,
            memory=tensor.data,
            values=clone_of(tensor) if with_values else None,
            version=version_of(tensor),
            grad=tensor.grad if tensor.is_leaf else None,
            needs_grad=tensor.requires_grad,
        )

    def is_as_it_was(self) -> bool:
        """Are its memory and its values the same? Asked of one whose values were kept."""
        assert self.values is not None
        try:
            return _is_same_memory(self.tensor, self.memory) and has_same_bits(self.memory, self.values)
        except Exception:  # a kind of tensor that cannot be compared, nor put back
            return True

    def restore(self) -> None:
        """Put back what is not what it was."""
        with contextlib.suppress(Exception):  # a kind of tensor that refuses it
            if not _is_same_memory(self.tensor, self.memory):
                self.tensor.data = self.memory
            if self.values is not None and not has_same_bits(self.memory, self.values):
                write_back(self.memory, self.values)
            if self.tensor.is_leaf:
                if self.tensor.requires_grad is not self.needs_grad:
                    self.tensor.requires_grad_(self.needs_grad)
                if self.tensor.grad is not self.grad:
                    self.tensor.grad = self.grad
            if self.version not in (-1, version_of(self.tensor)):
                set_version(self.tensor, self.version)


def _is_same_memory(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.layout is not torch.strided:
        return True
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
