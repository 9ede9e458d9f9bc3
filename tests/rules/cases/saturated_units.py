"""R17: weights so large that every tanh is at its ends."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ["1"]


def fires() -> None:
    _train(10.0)


def silent() -> None:
    """The last tanh may saturate: it is the answer."""
    _train(0.3)


def _train(std: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1), nn.Tanh())
    nn.init.normal_(model[0].weight, std=std)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        x = torch.randn(64, 8)
        loss = F.mse_loss(model(x), x[:, :1].sign())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
