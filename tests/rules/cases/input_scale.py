"""R20: pixels from 0 to 255 go into the model as they are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ["layers.0"]


def fires() -> None:
    _train(1.0)


def silent() -> None:
    """The model divides them."""
    _train(255.0)


class Divide(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x / self.by)


def _train(by: float) -> None:
    torch.manual_seed(0)
    model = Divide(by)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        x = torch.randint(0, 256, (64, 64)).float()
        y = x[:, :3].argmax(1)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
