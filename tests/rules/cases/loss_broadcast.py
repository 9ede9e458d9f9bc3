"""R7: predictions of shape (64, 1) against targets of shape (64)."""

from __future__ import annotations

import torch
from torch import nn

PLACE = "loss = ((out - y) ** 2).mean()"


def fires() -> None:
    _train(squeezes=False)


def silent() -> None:
    """Predictions and targets of the same shape."""
    _train(squeezes=True)


def _train(*, squeezes: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        x = torch.randn(64, 8)
        y = x[:, 0] * 2
        out = model(x)
        out = out.squeeze(-1) if squeezes else out
        loss = ((out - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
