"""R18: labels that the input does not tell."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.cross_entropy(model(x), y)"


def fires() -> None:
    _train(informative=False)


def silent() -> None:
    """Labels that follow from the input."""
    _train(informative=True)


def _train(*, informative: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(240):
        x = torch.randn(64, 8)
        y = x[:, :4].argmax(1) if informative else torch.randint(0, 4, (64,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
