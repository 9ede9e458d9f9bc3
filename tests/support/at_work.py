"""What worker processes do with a model. They import this file, which knows nothing of the debugger."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def work_on(model: Any) -> tuple[list[Any], list[float], int]:
    """Train a step: the outputs, the gradients, and how many hooks the model has."""
    x = torch.ones(3, 4)
    model(x).sum().backward()
    with torch.no_grad():
        model[0].weight.mul_(2)
    gradients = [parameter.grad.sum().item() for parameter in model.parameters()]
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())
    return model(x).tolist(), gradients, hooks


def work_and_tell(model: nn.Module, queue: Any) -> None:
    queue.put((work_on(model), "layerstep" in sys.modules))


class Rows(Dataset[Tensor]):
    """Rows that a model computes in the worker."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return self.model(torch.full((4,), float(index)))
