"""R45: a warm-up that begins at zero and is never stepped on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("SGD",)


def fires() -> None:
    _train(0.0)


def silent() -> None:
    """The rate is zero in the first step only."""
    _train(0.01)


def _train(rise: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rise * min(step, 5))
    for _ in range(40):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
