"""R27: the schedule after the warm-up begins at a rate that is a hundred times smaller."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("SGD",)


def fires() -> None:
    _train(5e-4)


def silent() -> None:
    _train(0.05)


def _train(after: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.05 * (step + 1) / 10 if step < 10 else after * 0.98 ** (step - 10)
    )
    for _ in range(40):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
