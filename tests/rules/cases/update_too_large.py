"""R12: a learning rate that is a thousand times too large."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("Adam",)


def fires() -> None:
    _train(1.0)


def silent() -> None:
    _train(1e-3)


def _train(lr: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for _ in range(40):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
