"""R44: images are normalised in the dataset and once more in the loop."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ["0"]


def fires() -> None:
    _train(2)


def silent() -> None:
    """Once."""
    _train(1)


def _train(times: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        x = torch.randint(0, 256, (32, 1, 12, 12)).float() / 255
        y = torch.arange(32) % 2
        x[y == 1, :, :6] = 0
        for _ in range(times):
            x = (x - 0.5) / 0.5
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
