"""R13: a learning rate that is a million times too small."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("SGD",)


def fires() -> None:
    _train(1e-7)


def silent() -> None:
    _train(0.05)


def _train(lr: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(60):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
