"""R5: the first layer is frozen."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("0.weight",)


def fires() -> None:
    _train(frozen=True)


def silent() -> None:
    _train(frozen=False)


def _train(*, frozen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model[0].requires_grad_(not frozen)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(20):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
