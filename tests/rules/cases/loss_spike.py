"""R38: one batch is a thousand times too large."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.cross_entropy(model(x), y)"


def fires() -> None:
    _train(1000.0)


def silent() -> None:
    """All batches alike."""
    _train(1.0)


def _train(factor: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for at in range(110):
        x = torch.randn(32, 8)
        y = x[:, :4].argmax(1)
        x = x * factor if at == 100 else x
        y = y.flip(0) if at == 100 and factor > 1 else y
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
