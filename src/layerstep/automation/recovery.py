"""Actions that change the run, because the user asked for them: each says what it did.

They act when the gradients are complete and the optimizer is about to step.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from layerstep.automation.hook import HookAction
from layerstep.module_paths.models import Models
from layerstep.training_steps.steps import Stepped

__all__ = ["Recovery"]


class Recovery:
    """What one hook changes."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._hidden: list[tuple[Tensor, Tensor]] = []
        """The gradients that a skipped step does not find, to be put back after it."""
        self._saved: list[tuple[Tensor, Tensor]] = []
        self._saved_optimizers: dict[int, dict[str, Any]] = {}
        self._saved_at: dict[int, int] = {}

    def act(self, action: HookAction, stepped: Stepped, step: int) -> str:
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
                    return self._restore(stepped, optimizer, step)

    def stepped(self) -> None:
        """The step is over: the gradients of a skipped one are back."""
        for parameter, gradient in self._hidden:
            if parameter.grad is None:
                parameter.grad = gradient
        self._hidden.clear()

    def keep(self, action: HookAction, stepped: Stepped, step: int) -> None:
        """Nothing is wrong: keep a snapshot if one is due."""
        optimizer = stepped.optimizer
        due = self._saved_at.get(stepped.number, -math.inf) + action.number
        if optimizer is None or step < due:
            return
        with torch.no_grad():
            state = [tensor for model in self._models if model.root for tensor in _state(model.root)]
            own = [p for group in optimizer.param_groups for p in group["params"]]
            tensors = {id(each): each for each in (*state, *own)}
            self._saved = [(each, each.detach().clone()) for each in tensors.values()]
            self._saved_optimizers[stepped.number] = copy.deepcopy(optimizer.state_dict())
        self._saved_at[stepped.number] = step

    def _skip(self, optimizer: Optimizer) -> str:
        for parameter, gradient in _gradients(optimizer):
            self._hidden.append((parameter, gradient))
            parameter.grad = None
        return f"skipped a step of {type(optimizer).__name__}"

    def _restore(self, stepped: Stepped, optimizer: Optimizer, step: int) -> str:
        saved = self._saved_optimizers.get(stepped.number)
        skipped = self._skip(optimizer)
        if saved is None:
            return f"{skipped}; there is no healthy snapshot yet"
        for tensor, value in self._saved:
            tensor.detach().copy_(value)
        optimizer.load_state_dict(copy.deepcopy(saved))
        return f"went back to step {self._saved_at[stepped.number]}: models and {stepped.kind}"


def _state(root: torch.nn.Module) -> list[Tensor]:
    return [*root.parameters(), *root.buffers()]


def _gradients(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [(p, p.grad) for p in parameters if p.grad is not None]


def _replace(optimizer: Optimizer, value: float) -> str:
    count = tensors = 0
    for _, gradient in _gradients(optimizer):
        bad = int((~torch.isfinite(gradient)).sum())
        if bad:
            gradient.nan_to_num_(value, value, value)
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
