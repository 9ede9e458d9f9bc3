"""Actions that change the run, because the user asked for them: each says what it did.

They act when the gradients are complete and the optimizer is about to step.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from layerstep.automation.hook import HookAction
from layerstep.module_paths.models import Models
from layerstep.training_steps.steps import Stepped, Steps

__all__ = ["Recovery"]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The models and all optimizers at one step."""

    step: int
    tensors: list[tuple[Tensor, Tensor]]
    """Each with a copy of its values."""
    optimizers: list[tuple[Optimizer, dict[str, Any]]]


class Recovery:
    """What one hook changes."""

    def __init__(self, models: Models, training: Steps) -> None:
        self._models = models
        self._training = training
        self._hidden: list[tuple[Tensor, Tensor]] = []
        """The gradients that a skipped step does not find, to be put back after it."""
        self._snapshot: _Snapshot | None = None

    def act(self, action: HookAction, stepped: Stepped) -> str:
        """Do it; in words, what has changed. Nothing if nothing had to."""
        optimizer = stepped.optimizer
        if optimizer is None:
            return ""
        with torch.no_grad():
            match action.kind:
                case "replace":
                    return _replace(optimizer, action.number)
                case "clip":
                    return _clip(optimizer, action.number)
                case "skip":
                    return self._skip(optimizer)
                case "lower rate":
                    return _lower(optimizer, action.number)
                case _:
                    return self._restore(optimizer)

    def stepped(self) -> None:
        """The step is over: put back the gradients of a skipped one."""
        for parameter, gradient in self._hidden:
            if parameter.grad is None:
                parameter.grad = gradient
        self._hidden.clear()

    def keep(self, action: HookAction, stepped: Stepped, step: int) -> None:
        """Nothing is wrong: keep a snapshot if one is due."""
        if self._snapshot is not None and step < self._snapshot.step + action.number:
            return
        own = stepped.optimizer
        known = [each.optimizer for each in self._training.optimizers]
        optimizers = list({id(each): each for each in (*known, own) if each is not None}.values())
        held = [tensor for model in self._models if model.root is not None for tensor in _state(model.root)]
        trained = [p for each in optimizers for group in each.param_groups for p in group["params"]]
        with torch.no_grad():
            tensors = {id(each): each for each in (*held, *trained)}.values()
            copies = [(each, each.detach().clone()) for each in tensors]
        states = [(each, copy.deepcopy(each.state_dict())) for each in optimizers]
        self._snapshot = _Snapshot(step, copies, states)

    def _skip(self, optimizer: Optimizer) -> str:
        for parameter, gradient in _gradients(optimizer):
            self._hidden.append((parameter, gradient))
            parameter.grad = None
        return f"skipped a step of {type(optimizer).__name__}"

    def _restore(self, optimizer: Optimizer) -> str:
        snapshot, skipped = self._snapshot, self._skip(optimizer)
        if snapshot is None:
            return f"{skipped}; there is no healthy snapshot yet"
        for tensor, value in snapshot.tensors:
            tensor.detach().copy_(value)
        for each, state in snapshot.optimizers:
            each.load_state_dict(copy.deepcopy(state))
        kinds = " and ".join(type(each).__name__ for each, _ in snapshot.optimizers)
        return f"went back to step {snapshot.step}: models and {kinds}"


def _state(root: torch.nn.Module) -> list[Tensor]:
    return [*root.parameters(), *root.buffers()]


def _gradients(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [(p, p.grad) for p in parameters if p.grad is not None]


def _replace(optimizer: Optimizer, value: float) -> str:
    count = tensors = 0
    for parameter, gradient in _gradients(optimizer):
        found = gradient.coalesce() if gradient.is_sparse else gradient
        values = found.values() if found.is_sparse else found
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            values.nan_to_num_(value, value, value)
            parameter.grad = found
            count, tensors = count + bad, tensors + 1
    return f"replaced {count:,} values of {tensors} gradients by {value:g}" if count else ""


def _clip(optimizer: Optimizer, most: float) -> str:
    parameters = [parameter for parameter, _ in _gradients(optimizer)]
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if not math.isfinite(norm) or norm <= most:
        return ""
    torch.nn.utils.clip_grad_norm_(parameters, most)
    return f"clipped gradients to a norm of {most:g}"


def _lower(optimizer: Optimizer, factor: float) -> str:
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    return f"multiplied the learning rate of {type(optimizer).__name__} by {factor:g}"
