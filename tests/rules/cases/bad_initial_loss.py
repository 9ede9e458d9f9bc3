"""R9: the last layer starts so large that the model is sure of wrong answers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.cross_entropy(model(x), y)"


def fires() -> None:
    _train(6.0)


def silent() -> None:
    """The default initialisation."""
    _train(0.1)


def _train(scale: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 10))
    nn.init.normal_(model[2].weight, std=scale)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(30):
        x = torch.randn(32, 8)
        y = x[:, :8].argmax(1)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
