"""R16: biases so negative that no unit ever answers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ["1", "2"]


def fires() -> None:
    _train(-20.0)


def silent() -> None:
    """Biases of zero."""
    _train(0.0)


def _train(bias: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    nn.init.constant_(model[0].bias, bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(60):
        x = torch.randn(128, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
