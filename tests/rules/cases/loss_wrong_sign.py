"""R48: the log-probability of the labels is made small instead of large."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = sign * F.log_softmax(model(x), -1).gather(1, y[:, None]).mean()"


def fires() -> None:
    _train(1.0)


def silent() -> None:
    """With the minus."""
    _train(-1.0)


def _train(sign: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(30):
        x = torch.randn(32, 8)
        y = x[:, :3].argmax(1)
        loss = sign * F.log_softmax(model(x), -1).gather(1, y[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
