"""R3: a layer is left out of the optimizer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("2.weight", "2.bias")


def fires() -> None:
    model = _model()
    _train(model, [*model[0].parameters(), *model[4].parameters()])


def silent() -> None:
    """The same layer is frozen: it has no gradient, so nothing is lost."""
    model = _model()
    model[2].requires_grad_(False)
    _train(model, [*model[0].parameters(), *model[4].parameters()])


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def _train(model: nn.Module, parameters: list[nn.Parameter]) -> None:
    optimizer = torch.optim.SGD(parameters, 0.05)
    for _ in range(30):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        model.zero_grad()
        loss.backward()
        optimizer.step()
