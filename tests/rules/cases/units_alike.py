"""R10: all weights begin at one value."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("0.weight",)


def fires() -> None:
    model = _model()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    _train(model)


def silent() -> None:
    """The last layer begins at zero, and comes apart in the first step."""
    model = _model()
    nn.init.zeros_(model[2].weight)
    _train(model)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def _train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(30):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
