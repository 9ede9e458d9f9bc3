"""R42: a line for what needs a curve."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.mse_loss(model(x), x**2)"


def fires() -> None:
    _train(nn.Linear(1, 1))


def silent() -> None:
    """A model that can bend."""
    _train(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))


def _train(model: nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(400):
        x = torch.rand(64, 1) * 4 - 2
        loss = F.mse_loss(model(x), x**2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
