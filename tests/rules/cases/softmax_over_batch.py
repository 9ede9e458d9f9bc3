"""R46: log_softmax over the samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.nll_loss(F.log_softmax(out, dim), y)"


def fires() -> None:
    _train(0)


def silent() -> None:
    """Over the classes."""
    _train(1)


def _train(dim: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        x = torch.randn(32, 8)
        y = x[:, :3].argmax(1)
        out = model(x)
        loss = F.nll_loss(F.log_softmax(out, dim), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
