"""R43: one batch has no label that counts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.cross_entropy(model(x), y)"


def fires() -> None:
    _train(32)


def silent() -> None:
    """Half of the labels are ignored."""
    _train(16)


def _train(ignored: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for at in range(40):
        x = torch.randn(32, 8)
        y = x[:, :3].argmax(1)
        if at == 30:
            y[:ignored] = -100
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
