"""R26: a scheduler is made and forgotten."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("CosineAnnealingLR",)


def fires() -> None:
    _train(steps=False)


def silent() -> None:
    _train(steps=True)


def _train(*, steps: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    data = torch.randn(8, 16, 8)
    for _ in range(5):
        for x in data:
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if steps:
            scheduler.step()
