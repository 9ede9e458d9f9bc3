"""What stays between steps: parameters, buffers, gradients and the state of optimizers, by path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from layerstep._torch import is_scripted
from layerstep._torch.saved import key_of
from layerstep.module_paths.models import Models
from layerstep.tensors.autograd_graph import inner_tensors, size_of

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

    from layerstep.training_steps.steps import Steps

__all__ = [
    "KEPT",
    "add_once",
    "buffers_of",
    "gradients_of",
    "kept_by",
    "parameters_of",
    "state_of",
    "states_of",
]


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
    """The state of every optimizer that has stepped.

    State for a parameter of no model is listed under the optimizer.
    """
    homes = dict[int, str]()
    for path, parameter in parameters_of(models):
        homes.setdefault(id(parameter), path)  # where the bytes of a shared one are listed, too
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


KEPT = ("parameters", "buffers", "gradients", "optimizer state")


Kinds = dict[str, dict[str, int]]
"""Bytes by kind and path."""


def kept_by(models: Models, training: Steps | None, seen: set[int] | None = None) -> Kinds:
    """What stays. Memory that two share counts once, for the first; all of it is then in `seen`."""
    seen = set() if seen is None else seen
    states = states_of(models, training) if training is not None else ()
    given = (parameters_of(models), buffers_of(models), gradients_of(models), states)
    return {kind: add_once(tensors, seen) for kind, tensors in zip(KEPT, given, strict=True)}


def add_once(tensors: Iterable[tuple[str, Tensor]], seen: set[int]) -> dict[str, int]:
    """The bytes by path of what is not in `seen` yet. Adds it there."""
    sums: Counter[str] = Counter()
    for path, tensor in tensors:
        key = key_of(tensor)
        if key and key not in seen:
            seen.add(key)
            sums[path] += size_of(tensor)
    return dict(sums)
