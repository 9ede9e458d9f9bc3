"""R8: cross_entropy is summed over the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = 'loss = F.cross_entropy(model(x), y, reduction="sum") / divisor'


def fires() -> None:
    _train(1)


def silent() -> None:
    """The sum is divided by the batch size."""
    _train(32)


def _train(divisor: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(30):
        x = torch.randn(32, 8)
        y = x[:, :3].argmax(1)
        loss = F.cross_entropy(model(x), y, reduction="sum") / divisor
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
