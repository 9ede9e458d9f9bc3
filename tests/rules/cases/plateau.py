"""R39: a line is fitted to what no line fits, until the loss stays where it is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.mse_loss(model(x), x**2)"


def fires() -> None:
    _train(600, 0.05)


def silent() -> None:
    """It ends while the loss is falling."""
    _train(230, 0.0005)


def _train(steps: int, lr: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    x = torch.linspace(-2, 2, 64)[:, None]
    for _ in range(steps):
        loss = F.mse_loss(model(x), x**2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
