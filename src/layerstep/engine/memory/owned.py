"""What stays between the steps: parameters, buffers, gradients and the state of optimizers, by path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from layerstep.engine._torch import is_scripted
from layerstep.engine.memory.graph import inner_tensors
from layerstep.engine.models import Models

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

    from layerstep.engine.training import Steps

__all__ = ["buffers_of", "gradients_of", "parameters_of", "state_of", "states_of"]


def parameters_of(models: Models) -> Iterator[tuple[str, Tensor]]:
    for path, module in models.everything():
        inside = module.parameters() if is_scripted(module) else module._parameters.values()
        for parameter in inside:  # no path leads into a scripted module
            if parameter is not None:
                yield path, parameter


def buffers_of(models: Models) -> Iterator[tuple[str, Tensor]]:
    for path, module in models.everything():
        for buffer in module.buffers() if is_scripted(module) else module._buffers.values():
            if buffer is not None:
                yield path, buffer


def gradients_of(models: Models) -> Iterator[tuple[str, Tensor]]:
    for path, parameter in parameters_of(models):
        if parameter.grad is not None:
            for part in inner_tensors(parameter.grad):
                yield path, part


def states_of(models: Models, training: Steps) -> Iterator[tuple[str, Tensor]]:
    """Of every optimizer that has stepped; that of a parameter of no model is the optimizer's own."""
    homes = {id(parameter): path for path, parameter in parameters_of(models)}
    for stepped in training.optimizers:
        optimizer = stepped.optimizer
        if optimizer is not None:
            for parameter, tensor in state_of(optimizer):
                yield homes.get(id(parameter), stepped.kind), tensor


def state_of(optimizer: Optimizer) -> Iterator[tuple[Tensor, Tensor]]:
    """(parameter, a tensor kept for it)."""
    for parameter, state in list(optimizer.state.items()):
        for tensor in inner_tensors(state):
            yield parameter, tensor
